"""A batch policy whose faults end no request."""

from collections.abc import Callable
from typing import Final

from qlm.agents.batching.decision import BatchPolicy, Decision
from qlm.agents.batching.policies.fcfs import FirstComeFirstServed
from qlm.agents.batching.policies.registry import batch_policy
from qlm.agents.batching.view import View

LONGEST_S: Final = 1e9
"""Largest time of a decision: whole nanoseconds of it can be added to any clock."""


class GuardedPolicy:
    """A policy for a live engine: where it raises or gives no decision, first come, first served decides.

    Simulations use policies without this guard, so that a fault is seen.

    Args:
        policy: A policy of its own.
        report: Called in the handler of each exception, so that a log can show its traceback.
    """

    def __init__(self, policy: BatchPolicy, report: Callable[[], None]) -> None:
        self._policy, self._fallback = policy, FirstComeFirstServed()
        self._report = report

    def decide(self, view: View) -> Decision:
        """Return the policy's decision; one without a time for the next if that time is no usable number."""
        try:
            return _sound(self._policy.decide(view))
        except Exception:  # whatever it is: the engine's requests go on
            self._report()
            return self._fallback.decide(view)

    def room(self, view: View) -> int:
        """Return the policy's room."""
        try:
            return int(self._policy.room(view))
        except Exception:  # as in `decide`
            self._report()
            return self._fallback.room(view)


def _sound(decision: Decision) -> Decision:
    """Return a decision of exactly the declared types, each request once, that a host can apply.

    Raises:
        Exception: It cannot be read as one.
    """
    again_s = decision.again_s
    if again_s is not None:
        again_s = float(again_s) if abs(again_s) <= LONGEST_S else None
    return Decision(
        run=tuple(dict.fromkeys(decision.run)),
        hold=frozenset(decision.hold),
        recompute=frozenset(decision.recompute),
        skips=bool(decision.skips),
        again_s=again_s,
    )


def guarded_policy(name: str, log_exception: Callable[[str], object]) -> GuardedPolicy:
    """Return a policy by name whose first fault is logged.

    Args:
        name: Name of the policy.
        log_exception: Logs a message with the traceback of the exception that is being handled.

    Raises:
        InvalidValueError: No policy has that name.
    """
    reported = False

    def report() -> None:
        nonlocal reported
        if not reported:
            log_exception("the batch policy failed: first come, first served instead")
        reported = True

    return GuardedPolicy(batch_policy(name), report)
