"""Start vLLM's API server in a third of the time, for tests on a CPU only.

vLLM starts its engine and its worker with `spawn`, so each imports torch and vllm again, one after the other
(8 s each on two cores). On a CPU no device forbids `fork`: the children inherit what the server has imported.
This changes vLLM in memory, so one test runs the plain `vllm serve` to show that nothing depends on it.

Usage: like `python -m vllm.entrypoints.openai.api_server`, the same arguments.
"""

import importlib
import multiprocessing
import os
import runpy
import sys
from multiprocessing.context import BaseContext

from vllm.utils import system_utils

API_SERVER = "vllm.entrypoints.openai.api_server"
ASYNCHRONOUS = "QLM_TEST_ASYNC_SCHEDULING"
"""Environment variable that switches asynchronous scheduling on, which vLLM itself does not do on a CPU."""
# What the children need besides the server's own imports: loaded once, before the fork.
USED_BY_CHILDREN = [
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
]


def _fork_context() -> BaseContext:
    return multiprocessing.get_context("fork")


def _force_nothing() -> None:
    """Leave the start method alone."""


def main() -> None:
    """Replace vLLM's choice of start method, import ahead, and become the API server."""
    # Before anything else imports them by name.
    system_utils.get_mp_context = _fork_context
    system_utils._maybe_force_spawn = _force_nothing
    for module in USED_BY_CHILDREN:
        importlib.import_module(module)
    if os.environ.get(ASYNCHRONOUS):
        importlib.import_module("asynchronous").schedule_asynchronously()
    sys.argv[0] = API_SERVER
    runpy.run_module(API_SERVER, run_name="__main__", alter_sys=True)


main()
