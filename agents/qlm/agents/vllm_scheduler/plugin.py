"""The class for vLLM's `--scheduler-cls`: `qlm.agents.vllm_scheduler.plugin.QlmScheduler`."""

from importlib import import_module
from typing import Any, Final

import vllm

from qlm.agents.vllm_scheduler.version import check_version

# First of all: another version may not even have what the scheduler imports.
check_version(vllm.__version__)

QlmScheduler: Final[Any] = import_module("qlm.agents.vllm_scheduler.scheduler").QlmScheduler
