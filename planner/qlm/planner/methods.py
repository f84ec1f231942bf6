"""The planning methods by name, for `qlm plan --method` and benchmarks."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from qlm.domain.errors import InvalidValueError
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.baselines.fcfs import plan_fcfs
from qlm.planner.baselines.group_greedy import plan_group_greedy
from qlm.planner.baselines.most_memory import plan_most_memory
from qlm.planner.baselines.priority_fcfs import plan_priority_fcfs
from qlm.planner.baselines.random_placement import plan_random
from qlm.planner.baselines.round_robin import plan_round_robin
from qlm.planner.baselines.sjf import plan_sjf
from qlm.planner.exact.limits import SCENARIOS_MAX
from qlm.planner.extra import needs_solvers
from qlm.planner.limits import ITERATIONS_MAX, SEED_MAX, TIME_LIMIT_MAX_S, TIME_LIMIT_MIN_S
from qlm.planner.plain_reader import number
from qlm.planner.problem import Objective, Plan, Problem, ScaleUp
from qlm.planner.verify.referee import judged

if TYPE_CHECKING:
    from qlm.planner.policy.one_more import FleetForecast
    from qlm.planner.policy.scale_up import Advice

SCALE_UP_MOVES_PER_GROUP: Final = 50
"""Moves of the fast solver for each fleet that is tried: enough to estimate the misses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits and options of a method; a method ignores those that it does not need.

    Attributes:
        time_limit_s: Time after which to return the incumbent; None for the method's own limit.
        stopwatch_s: Reads a steady clock; needed for a time limit.
        iterations: Limit in steps of the method: equal input then gives an equal plan on any machine.
        seed: Seed of the random numbers.
        scenarios: Sampled scenarios of the exact method; None for the expectation itself.
        objective: Objective to minimise, if the method can.
    """

    time_limit_s: float | None = None
    stopwatch_s: Callable[[], float] | None = None
    iterations: int | None = None
    seed: int = 0
    scenarios: int | None = None
    objective: Objective = "requests"

    def __post_init__(self) -> None:
        if self.time_limit_s is not None:
            number("time_limit_s", self.time_limit_s, least=TIME_LIMIT_MIN_S, most=TIME_LIMIT_MAX_S)
            if self.stopwatch_s is None:
                raise InvalidValueError("stopwatch_s", None, "a clock to keep the time limit by")
        if self.iterations is not None:
            number("iterations", self.iterations, least=0, most=ITERATIONS_MAX)
        number("seed", self.seed, least=0, most=SEED_MAX)
        if self.scenarios is not None:
            number("scenarios", self.scenarios, least=1, most=SCENARIOS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A planning method.

    Attributes:
        about: One line for users.
        solve: Makes the plan; the referee prices it.
        minimises: Objectives that it minimises; empty for a heuristic rule.
        keeps_priorities: No group follows one of a higher priority number.
    """

    name: str
    about: str
    solve: Callable[[Problem, Limits], Plan]
    minimises: tuple[Objective, ...] = ()
    keeps_priorities: bool = True


def method(name: str) -> Method:
    """Look up a method.

    Raises:
        InvalidValueError: There is none of this name.
    """
    if name not in METHODS:
        raise InvalidValueError("method", name, f"one of {', '.join(METHODS)}")
    return METHODS[name]


def plan_by(name: str, problem: Problem, limits: Limits) -> Plan:
    """Plan by the method of this name, and fill in penalty and attainment.

    Raises:
        InvalidValueError: There is no such method, or the problem is not for it.
        QlmError: The method needs a package that is not installed.
    """
    chosen = method(name)
    with needs_solvers(f"method {name}"):
        plan = chosen.solve(problem, limits)
    if limits.objective not in chosen.minimises:
        # A bound on one objective says nothing about the other.
        plan = replace(plan, lower_bound_s=None)
    return judged(problem, plan, objective=limits.objective)


def with_bound(problem: Problem, plan: Plan) -> Plan:
    """Add a lower bound on the penalty of every plan, if the plan has none; by the objective `requests`.

    Raises:
        QlmError: It needs a package that is not installed.
    """
    if plan.lower_bound_s is not None:
        return plan
    with needs_solvers("the lower bound"):
        from qlm.planner.bound.lower_bound import lower_bound
    return replace(plan, lower_bound_s=lower_bound(problem))


def scale_up_advice(problem: Problem, plan: Plan, kinds: Collection[str] | None = None) -> "Advice":
    """Search for the fewest instances whose addition would repair the misses of a plan.

    Args:
        problem: The problem.
        plan: A feasible plan of it.
        kinds: Kinds of which instances may be added; all if None.

    Raises:
        QlmError: It needs a package that is not installed.
    """
    with needs_solvers("the scale-up"):
        from qlm.planner.fast.settings import SearchBudget
        from qlm.planner.fast.solve import solve_fast
        from qlm.planner.policy.scale_up import advise

    def quickly(enlarged: Problem) -> Plan:
        return solve_fast(
            enlarged, budget=SearchBudget(moves=SCALE_UP_MOVES_PER_GROUP * len(enlarged.groups))
        )

    return advise(problem, plan, quickly, kinds)


def missing_instances(problem: Problem, plan: Plan) -> tuple[ScaleUp, ...]:
    """Return the fewest instances whose addition would repair the misses of a plan, beside those that load.

    Instances that load a model, or have none, count as ready: until they are, more of them would be asked for
    at each call.

    Raises:
        QlmError: It needs a package that is not installed.
    """
    with needs_solvers("the scale-up"):
        from qlm.planner.policy.scale_up import as_loaded
    loaded = as_loaded(problem)
    return scale_up_advice(loaded, plan if loaded is problem else planned_again(loaded, plan)).scale_up


def planned_again(problem: Problem, plan: Plan) -> Plan:
    """Return what the plan generator makes of the present plan.

    Raises:
        QlmError: It needs a package that is not installed.
    """
    with needs_solvers("the scale-up"):
        from qlm.planner.policy.one_more import replanned
        from qlm.planner.policy.replanning import improved
    return replanned(problem, plan, improved)


def fleet_forecasts(problem: Problem, plan: Plan, kinds: Iterable[str]) -> "list[FleetForecast]":
    """Return what to expect of the present fleet, and of it with one more instance of each kind.

    Raises:
        QlmError: It needs a package that is not installed.
    """
    with needs_solvers("the scale-up"):
        from qlm.planner.policy.one_more import one_more
        from qlm.planner.policy.replanning import improved
    return one_more(problem, plan, kinds, improved)


# The solvers' packages take a second to import: they are imported where they are used.
def _fast(problem: Problem, limits: Limits) -> Plan:
    from qlm.planner.fast.settings import SearchBudget
    from qlm.planner.fast.solve import solve_fast

    budget = SearchBudget(
        moves=limits.iterations, time_limit_s=limits.time_limit_s, stopwatch_s=limits.stopwatch_s
    )
    return solve_fast(problem, seed=limits.seed, budget=budget)


def _exact(problem: Problem, limits: Limits) -> Plan:
    from qlm.planner.exact.limits import TIME_LIMIT_S
    from qlm.planner.exact.solve import solve_exact

    return solve_exact(
        problem,
        scenarios=limits.scenarios,
        seed=limits.seed,
        time_limit_s=TIME_LIMIT_S if limits.time_limit_s is None else limits.time_limit_s,
        objective=limits.objective,
    )


def _shepherd(problem: Problem, limits: Limits) -> Plan:
    from qlm.planner.baselines.shepherd import plan_shepherd

    if limits.time_limit_s is None:
        return plan_shepherd(problem)
    return plan_shepherd(problem, time_limit_s=limits.time_limit_s)


def _rule(plan: Callable[[Problem], Plan]) -> Callable[[Problem, Limits], Plan]:
    return lambda problem, limits: plan(problem)


METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        each.name: each
        for each in (
            Method(
                name="fast",
                about="search from good starts in compiled code until the time is over; any problem",
                solve=_fast,
                minimises=("requests",),
            ),
            Method(
                name="exact",
                about="the best plan, proven, by a stochastic program; small problems",
                solve=_exact,
                minimises=("requests", "paper"),
            ),
            Method(
                name="edf",
                about="earliest deadline first, groups of a model kept together",
                solve=_rule(plan_edf),
            ),
            Method(
                name="fcfs",
                about="first come, first served",
                solve=_rule(plan_fcfs),
                keeps_priorities=False,
            ),
            Method(
                name="priority-fcfs",
                about="first come, first served within a priority",
                solve=_rule(plan_priority_fcfs),
            ),
            Method(
                name="sjf",
                about="shortest requests first",
                solve=_rule(plan_sjf),
                keeps_priorities=False,
            ),
            Method(
                name="shepherd",
                about="placement and order by SHEPHERD's integer program, times taken as certain",
                solve=_shepherd,
                keeps_priorities=False,
            ),
            Method(
                name="round-robin",
                about="instances by turns, first come, first served",
                solve=_rule(plan_round_robin),
                keeps_priorities=False,
            ),
            Method(
                name="most-memory",
                about="the instance with the most KV cache left, first come, first served",
                solve=_rule(plan_most_memory),
                keeps_priorities=False,
            ),
            Method(
                name="random",
                about="instances by lot, first come, first served",
                solve=lambda problem, limits: plan_random(problem, seed=limits.seed),
                keeps_priorities=False,
            ),
            Method(
                name="group-greedy",
                about="the model with most waiting requests first",
                solve=_rule(plan_group_greedy),
            ),
        )
    }
)
"""All methods, by name."""
