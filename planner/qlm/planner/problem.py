"""The planning problem as plain data, version 1: the only input of every planning method.

It holds the estimator's results, so any problem can be stored, replayed and compared. `problem_from_plain`
and `problem_to_plain` read and write JSON; unknown fields are refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.values import value
from qlm.rct_estimator.normal import NOTHING, Normal

VERSION: Final = 1
MISS_WEIGHT_S: Final = 600.0
"""Default price of one missed deadline, in seconds of lateness."""

Promises = Literal["plain", "priced", "hard"]
"""Whether plans keep promises (`PlannedGroup.p_met`): not at all, for a price, or before anything else."""

PROMISE_S: Final[Mapping[Promises, float]] = MappingProxyType({"plain": 0.0, "priced": 6_000.0, "hard": 1e6})
"""Price of one request short of a promise, seconds. The last is above any other gain: of two plans, the one
that is less short wins, and where all promises can be kept, the best plan keeps them (QLM, equation 12)."""

Objective = Literal["requests", "paper"]
"""Penalty of a plan: `requests` counts each request's expected lateness and miss; `paper` the mean lateness
of each group's last request, early ones negative (QLM, equations 5 and 11-13)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """Size of a model, and its swap times on one kind of accelerator.

    Attributes:
        weights_bytes: Size of its weights in host memory.
        swap_warm_s: Time to load it from host memory until it serves, seconds.
        swap_cold_s: Time to start it from storage until it serves, seconds.
        unload_s: Time to unload it, seconds.
        swap_reload_s: Time to load it from storage into its sleeping process, seconds; None if that does not
            sleep without weights.
        process_bytes: Host memory of its sleeping process, without weights.
        kv_tokens: Tokens that fit into its KV cache; 0 if unknown.
    """

    weights_bytes: int
    swap_warm_s: float
    swap_cold_s: float
    unload_s: float = 0.0
    swap_reload_s: float | None = None
    process_bytes: int = 0
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of instance: its host memory for sleeping models, and the models that run on it."""

    host_memory_bytes: int
    models: dict[ModelId, ModelCost]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An instance of the fleet.

    Attributes:
        kind: Key into `Problem.kinds`.
        loaded_model: The awake model, if any.
        warm_models: Models that sleep in its host memory, least recently used first.
        busy: Seconds until its present batch has ended.
        queue: Groups of the present plan, in order; groups that no longer wait may still be in it.
        unloaded_models: Those of `warm_models` that sleep without their weights.
        leave_s: Seconds of work that a swap discards if the first group of the queue needs another model.
    """

    id: InstanceId
    kind: str
    loaded_model: ModelId | None = None
    warm_models: tuple[ModelId, ...] = ()
    busy: Normal = NOTHING
    queue: tuple[GroupId, ...] = ()
    unloaded_models: tuple[ModelId, ...] = ()
    leave_s: float = 0.0


@value
class GroupTime:
    """Times of a group on one kind; the JSON calls them `drain_s` and `tail_s`.

    Both have the group's own variance. Errors that groups share come on top: along a queue their standard
    deviations add up, where own variances do.

    Attributes:
        service: Service time: from the start until the last request has left the queue (n mu / Theta),
            seconds.
        tail: Prefill and decode of the last request, seconds.
        class_sd_s: Standard deviation of the service time by the error of the class's mean length, which all
            groups of the class share.
        speed_sd_s: That by the error of the instance's speed, which all groups on an instance share.
        tail_speed_sd_s: Standard deviation of the tail by the error of the instance's speed.
    """

    service: Normal
    tail: Normal
    class_sd_s: float = 0.0
    speed_sd_s: float = 0.0
    tail_speed_sd_s: float = 0.0

    @property
    def whole_service(self) -> Normal:
        """Service time with the errors that it shares."""
        return Normal(self.service.mean, self.service.var + self.class_sd_s**2 + self.speed_sd_s**2)

    @property
    def whole_tail(self) -> Normal:
        """Tail with the error that it shares."""
        return Normal(self.tail.mean, self.tail.var + self.tail_speed_sd_s**2)

    def longer(self, service_s: float, tail_s: float) -> "GroupTime":
        """Return the times with that much more service and tail."""
        return replace(self, service=self.service + Normal(service_s), tail=self.tail + Normal(tail_s))


@value
class PlannedGroup:
    """A waiting request group.

    Attributes:
        requests: Number of waiting requests; positive.
        deadline_s: Deadline on the clock of `Problem.now_s`; None if it has none.
        priority: Lower goes first.
        time: Times by kind; a kind that is missing cannot run it.
        cls: Class whose error of the mean length it shares; None for an error of its own.
        p_met: Share of its requests promised to meet the deadline, in expectation; None for no promise.
        request_tokens: Mean prompt and answer of a request, tokens; 0 if unknown.
    """

    id: GroupId
    model: ModelId
    requests: int
    deadline_s: float | None
    priority: int = 0
    time: dict[str, GroupTime] = field(default_factory=dict)
    cls: str | None = None
    p_met: float | None = None
    request_tokens: float = 0.0

    @property
    def misses_allowed(self) -> float:
        """Expected misses up to which its promise holds; without one, all of its requests."""
        return self.requests * (1.0 if self.p_met is None else 1.0 - self.p_met)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One planning problem.

    Attributes:
        now_s: The present on the clock of the deadlines.
        miss_weight_s: Price of one missed deadline, in seconds of lateness.
        move_s: Price of moving a group to another instance than its present one.
        promise_s: Price of one request short of a promise (`PlannedGroup.p_met`), in seconds of lateness, on
            top of its miss; 0 keeps no promise.

    Raises:
        InvalidValueError: An id occurs twice, a group is in two queues, an instance is of no known kind, a
            model sleeps without weights that does not sleep, or a group has no request.
    """

    now_s: float
    kinds: dict[str, Kind]
    instances: tuple[Instance, ...]
    groups: tuple[PlannedGroup, ...]
    miss_weight_s: float = MISS_WEIGHT_S
    move_s: float = 0.0
    promise_s: float = 0.0

    def __post_init__(self) -> None:
        _unique("instances", (i.id for i in self.instances), "each id once")
        _unique("groups", (g.id for g in self.groups), "each id once")
        queued = (group for instance in self.instances for group in instance.queue)
        _unique("instances.queue", queued, "each group in one queue, once")
        for instance in self.instances:
            if instance.kind not in self.kinds:
                raise InvalidValueError(f"instances[{instance.id}].kind", instance.kind, "a key of kinds")
            for model in instance.unloaded_models:
                if model not in instance.warm_models:
                    where = f"instances[{instance.id}].unloaded_models"
                    raise InvalidValueError(where, model, "models of warm_models only")
        for group in self.groups:
            if group.requests < 1:
                raise InvalidValueError(f"groups[{group.id}].requests", group.requests, "at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUp:
    """A number of instances of one kind to add.

    Attributes:
        kind: Key into `Problem.kinds`.
        count: Positive.
    """

    kind: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The order of groups on each instance.

    Attributes:
        queues: Groups per instance, in the order of service; each group at most once.
        unplaceable: Groups whose model runs on no instance.
        method: Name of the planning method.
        objective: Objective of the penalty and of its bound.
        penalty_s: Penalty by the objective, seconds; None if not computed.
        lower_bound_s: Lower bound on the penalty of every plan of the problem; None if unknown.
        expected_attainment: Expected share of the requests with a deadline that meet it; requests of
            unplaceable groups do not. None if not computed.
        solve_s: Solution time; None if not measured.
        scale_up: The fewest instances whose addition would repair the misses; empty if unknown or none.
    """

    queues: dict[InstanceId, tuple[GroupId, ...]]
    unplaceable: tuple[GroupId, ...] = ()
    method: str = ""
    objective: Objective = "requests"
    penalty_s: float | None = None
    lower_bound_s: float | None = None
    expected_attainment: float | None = None
    solve_s: float | None = None
    scale_up: tuple[ScaleUp, ...] = ()


def _unique(what: str, names: Iterable[str], expected: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidValueError(what, name, expected)
        seen.add(name)
