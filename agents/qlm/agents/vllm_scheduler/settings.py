"""Settings of the scheduler, which come to it as JSON in an environment variable."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any, Final, NamedTuple

from qlm.agents.batching.decision import BatchPolicy
from qlm.agents.batching.policies.registry import batch_policy
from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.iteration import IterationTime

VARIABLE: Final = "QLM_VLLM_SCHEDULER"
"""Environment variable of the engine with the settings."""

SCHEDULER_CLASS: Final = "qlm.agents.vllm_scheduler.plugin.QlmScheduler"
"""Value of vLLM's `--scheduler-cls`."""

LINK_BYTES_PER_S: Final = 16e9
"""Bandwidth to host memory if none is given: PCIe 4.0 with 16 lanes, as it is measured about."""


class SchedulerSettings(NamedTuple):
    """Settings of one engine's scheduler.

    Attributes:
        batching: Name of the batch policy, or `module:Class` of one that is not QLM's.
        iteration: Duration of an iteration by the profile; None to learn it.
        link_bytes_per_s: Bandwidth between host memory and accelerator, one way.
    """

    batching: str = "fcfs"
    iteration: IterationTime | None = None
    link_bytes_per_s: float = LINK_BYTES_PER_S

    def text(self) -> str:
        """Write the value of the environment variable."""
        plain = self._asdict() | {"iteration": asdict(self.iteration) if self.iteration else None}
        return json.dumps(plain)

    @classmethod
    def parse(cls, text: str) -> "SchedulerSettings":
        """Read the value of the environment variable; empty for the defaults.

        Raises:
            InvalidValueError: It is malformed; the message names the setting if one is of the wrong type.
        """
        try:
            plain = json.loads(text or "{}")
            unknown = plain.keys() - set(cls._fields)
            if unknown:
                raise InvalidValueError(VARIABLE, sorted(unknown), f"keys of {', '.join(cls._fields)}")
            _check(plain)
            return cls(**plain | {"iteration": _iteration(plain.get("iteration"))})
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, InvalidValueError):
                raise
            raise InvalidValueError(VARIABLE, text, f"JSON of scheduler settings ({error})") from error

    def policy(self) -> BatchPolicy:
        """Return a new policy.

        Raises:
            InvalidValueError: There is none of that name.
        """
        module, colon, name = self.batching.partition(":")
        if not colon:
            return batch_policy(self.batching)
        try:
            made: BatchPolicy = getattr(import_module(module), name)()
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise InvalidValueError("batching", self.batching, f"an importable class ({error})") from error
        if not callable(getattr(made, "decide", None)):
            raise InvalidValueError("batching", self.batching, "a class of policies, with a method decide")
        return made


def _check(plain: Mapping[str, Any]) -> None:
    batching = plain.get("batching", "")
    if not isinstance(batching, str):
        raise InvalidValueError(
            f"{VARIABLE}: batching", batching, "the name of a batch policy, or module:Class"
        )
    link = plain.get("link_bytes_per_s", LINK_BYTES_PER_S)
    if isinstance(link, bool) or not isinstance(link, int | float) or not 0 < link < math.inf:
        raise InvalidValueError(f"{VARIABLE}: link_bytes_per_s", link, "a number above 0")


def _iteration(plain: Mapping[str, Any] | None) -> IterationTime | None:
    if plain is None:
        return None
    points = tuple((float(tokens), float(ms)) for tokens, ms in plain["linear_ms"])
    return IterationTime(**{**plain, "linear_ms": points})
