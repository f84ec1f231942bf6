"""Settings of the fast solver's search, each with its measured reason, and the budget of one search.

The defaults were tuned on the live problem of `benchmarks.planner`; docs/planner-measurements.md has the
results.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from qlm.domain.errors import InvalidValueError


class Neighborhood(NamedTuple):
    """Probabilities and sizes of the moves of the annealing, as compiled code takes them.

    The probabilities are in percent. They matter little on the live problem of the benchmarks.
    """

    run_groups_max: int = 12
    """Most groups that one move takes along."""
    near_groups: int = 20
    """A group moves beside one of this many groups of its model with earlier deadlines, or later ones."""
    costly_percent: int = 50
    """Start from the costliest of three random groups, instead of from a random one."""
    run_percent: int = 20
    """Take along a run of groups of one model, instead of one group."""
    peer_percent: int = 75
    """Go beside a group of the same model, where no swap is paid. The rest go anywhere: with fewer of these,
    models settle on instances too early."""
    ends_percent: int = 10
    """Exchange the ends of two queues (2-opt* in vehicle routing)."""
    exchange_percent: int = 70
    """Exchange two runs, or the ends of two queues; the rest of the moves relocate one run."""


_NEIGHBORHOOD: Final = Neighborhood()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Search lengths, temperatures and thresholds of the fast solver.

    Temperatures are in units of the mean cost of a group in the first solution.
    """

    moves_per_group: int = 600
    """Moves per group of a search from scratch without a budget."""
    moves_min: int = 160_000
    """Moves that small problems get at least (50 ms)."""
    moves_max: int = 2_000_000
    """Moves that large problems get at most without a budget."""
    replan_moves_per_group: int = 40
    """Moves per group of a re-plan without a budget."""

    round_moves: int = 10_000
    """Moves of one annealing round, at least. A round has the largest of `round_moves`, `moves_per_group` per
    group, and `round_moves_per_pair` per pair of groups; the search restarts from the incumbent with each."""
    round_moves_per_pair: int = 3
    """Moves of a round per pair of groups: one slow annealing of a large problem beats several short ones."""
    chunk_moves: int = 10_000
    """Moves between two readings of the clock (8 ms)."""
    move_s: float = 0.8e-6
    """Estimated time of one move (a loaded AMD EPYC, 1 600 groups on 100 instances)."""

    temperature_ratio: float = 1e-3
    """Last temperature of a round over its first."""
    single_round_temperature: float = 0.7
    """First temperature if the budget allows one round only."""
    single_round_ratio: float = 7e-3
    """Last temperature over the first, for a single round."""
    reheat: float = 0.3
    """First temperature of every second round."""
    ignoring_share: float = 0.75
    """Share of the search that ignores promises, if there are any: the rest starts from its plan."""
    replan_temperature: float = 0.01
    """First temperature of a re-plan: low, to keep the present plan nearly as it is."""

    insertion_work_max: float = 6e7
    """Largest groups^3 / instances for which the first solution is built by cheapest insertion. Above it,
    groups are list-scheduled. Insertion takes 0.05 s for 1 600 groups on 100 instances, 1 s for 1 000 on
    one."""
    free_pairs_max: int = 50_000
    """Most pairs of a penalty-free group and an instance for which these groups are inserted. Above it they
    are list-scheduled: insertion would take 0.1 s for 500 groups on 100 instances, and save 6 % of
    completion cost."""

    keep_share: float = 0.01
    """Keep the present plan unless penalty, or completion cost, falls by at least this share."""
    keep_s: float = 0.01
    """Keep the present plan unless the penalty falls by at least this many seconds per request."""
    keep_completion_s: float = 0.5
    """For a gain in completion cost alone: keep the present plan unless mean completion improves by at least
    this many seconds."""

    polish_moves: int = 20_000
    """Moves of the final descent over all groups, after a search from scratch: this many, but at most a
    quarter and at least a 20th of the moves made before."""
    polish_share: float = 0.6
    """Share of `finish_s` that the final descent may take."""
    new_share_max: float = 0.2
    """Largest share of new groups for a re-plan; above it the plan is made from scratch."""
    finish_s: float = 0.03
    """Part of a time limit kept for the work after the search, for 1 600 groups on 100 instances; less for
    fewer."""

    neighborhood: Neighborhood = _NEIGHBORHOOD
    """Moves of the annealing."""


DEFAULT_SETTINGS: Final = SearchSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchBudget:
    """Limits of one search.

    Attributes:
        moves: Most moves; None for as many as suit the size, or as the time allows.
        time_limit_s: Longest time, everything included; None for no limit.
        stopwatch_s: Reads a steady clock; needed for a time limit.
    """

    moves: int | None = None
    time_limit_s: float | None = None
    stopwatch_s: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        if self.moves is not None and self.moves < 0:
            raise InvalidValueError("moves", self.moves, "0 or more")
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise InvalidValueError("time_limit_s", self.time_limit_s, "a positive number")
        if self.time_limit_s is not None and self.stopwatch_s is None:
            raise InvalidValueError("stopwatch_s", None, "a clock to keep the time limit by")


UNLIMITED: Final = SearchBudget()
