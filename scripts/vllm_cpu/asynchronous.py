"""Asynchronous scheduling on vLLM's CPU build, for tests.

vLLM switches it off on CPUs. The worker inherits all that it takes from the one for GPUs, except streams and
events of CUDA. A CPU computes in order, so they have nothing to do.
"""

import contextlib
from typing import Any

import torch
from vllm.platforms.cpu import CpuPlatform


class _InOrder:
    """A stream or an event of a device that computes in order."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take what CUDA's take."""

    def record(self, *_: Any) -> None:
        """Note nothing."""

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait_stream(self, *_: Any) -> None:
        """Wait for nothing."""


def schedule_asynchronously() -> None:
    """Change vLLM and torch in this process, and in those that it forks.

    `--no-async-scheduling` still switches it off.
    """
    check = CpuPlatform.check_and_update_config

    def check_and_keep(vllm_config: Any) -> None:
        scheduler_config = vllm_config.scheduler_config
        wanted = scheduler_config.async_scheduling
        check(vllm_config)
        scheduler_config.async_scheduling = wanted

    CpuPlatform.check_and_update_config = staticmethod(check_and_keep)
    torch.cuda.Stream = torch.cuda.Event = _InOrder
    torch.cuda.current_stream = _InOrder
    torch.cuda.stream = contextlib.nullcontext
