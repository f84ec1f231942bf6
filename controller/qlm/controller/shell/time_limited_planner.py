"""A planner that must return in time: a plan that never ends would end all planning."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from qlm.controller.core.decide import Planner
from qlm.planner.policy.fallback import PlanTooSlowError
from qlm.planner.problem import Plan, Problem


@dataclass(slots=True)
class _Call:
    """One call of the planner, and its result."""

    planner: Planner
    problem: Problem
    processor_s: Callable[[], float]
    took_s: float = 0.0
    plan: Plan | None = None
    error: Exception | None = None

    def __call__(self) -> None:
        began_s = self.processor_s()
        try:
            self.plan = self.planner(self.problem)
        except Exception as error:
            self.error = error
        self.took_s = self.processor_s() - began_s


class TimeLimitedPlanner:
    """Calls a planner in a thread of its own, and waits for it no longer than allowed.

    A thread cannot be ended. So a planner that is late goes on, and its plan is dropped. No other plan is
    asked of it until it has ended: planners keep state.

    Attributes:
        took_s: Processor time of all its plans; of a late one, the time that it was allowed.
    """

    def __init__(
        self, planner: Planner, time_max_s: float, processor_s: Callable[[], float] = time.thread_time
    ) -> None:
        self._planner = planner
        self._time_max_s = time_max_s
        self._processor_s = processor_s
        self.took_s = 0.0
        self._late: threading.Thread | None = None

    def __call__(self, problem: Problem) -> Plan:
        """Plan.

        Raises:
            PlanTooSlowError: The planner takes too long, or has not ended an earlier plan yet.
        """
        if self._late is not None and self._late.is_alive():
            raise PlanTooSlowError(f"the planner has not ended a plan that took over {self._time_max_s:g} s")
        call = _Call(self._planner, problem, self._processor_s)
        self._late = thread = threading.Thread(target=call, name="planner", daemon=True)
        thread.start()
        thread.join(self._time_max_s)
        if thread.is_alive():
            self.took_s += self._time_max_s
            raise PlanTooSlowError(f"the planner took over {self._time_max_s:g} s")
        self.took_s += call.took_s
        if call.error is not None:
            raise call.error
        assert call.plan is not None
        return call.plan
