"""Engines that the scheduler does not run on: it says so at the start, in one line."""

from typing import Any

from qlm.domain.errors import InvalidValueError


def check_engine(scheduler: Any) -> None:
    """Check a vLLM scheduler after its own construction.

    Raises:
        InvalidValueError: QLM's scheduler cannot run on such an engine.
    """
    policy = scheduler.scheduler_config.policy
    if policy != "fcfs":
        raise InvalidValueError("--scheduling-policy", policy, "fcfs with QLM's scheduler")
    groups = len(scheduler.kv_cache_config.kv_cache_groups)
    if groups != 1:
        raise InvalidValueError(
            "KV cache groups of the model",
            groups,
            "1: QLM's scheduler counts blocks of one kind of attention",
        )
    if scheduler.num_spec_tokens:
        raise InvalidValueError("speculative tokens", scheduler.num_spec_tokens, "0 with QLM's scheduler")
