"""Time of the estimates in one controller decision: `python -m benchmarks.estimating`.

Two clusters: 1600 groups of 40 classes over 10 models on 100 instances of 2 kinds, and 10 groups of 10
classes over 2 models on 8 instances of one kind. Timed is everything that `core.decide.decide` does besides
grouping and planning: learning from the view, and building the planning problem.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.estimator import show
from qlm.controller.core.admission_signal import admission_signal
from qlm.controller.core.estimating.forecast import ForecastQuery, forecast
from qlm.controller.core.estimating.queues import estimates
from qlm.controller.core.estimating.snapshot import Snapshot, take_snapshot
from qlm.controller.core.estimating.state import NOTHING_LEARNED, EstimatorState, learn
from qlm.controller.core.fleet import Fleet
from qlm.controller.core.problem import make_problem
from qlm.domain.fleet import EngineCapacity, EngineState, InstanceStatus
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.outcome import Outcome
from qlm.domain.view import ClassView, ClusterView
from qlm.domain.virtual_queue import VirtualQueue
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.problem import Kind, ModelCost, Problem
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.store.core.length_stats import LengthStats

NOW_NS = 1_000_000_000_000
COST = ModelCost(weights_bytes=1, swap_warm_s=2.0, swap_cold_s=30.0, unload_s=1.0)


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a cluster."""

    instances: int
    groups: int
    classes: int
    models: int
    kinds: tuple[str, ...]


LARGE = Size(instances=100, groups=1600, classes=40, models=10, kinds=("A10", "A100"))
SMALL = Size(instances=8, groups=10, classes=10, models=2, kinds=("A100",))


def main() -> int:
    """Print the table."""
    print("                              median     P95     max   ms")
    for name, size in (("large", LARGE), ("small", SMALL)):
        view, fleet = make_view(size), make_fleet(size)
        state = learn(NOTHING_LEARNED, view, now_ns=NOW_NS, fleet=fleet)
        now = take_snapshot(view, now_ns=NOW_NS, fleet=fleet, state=state)
        asked = ForecastQuery(cls=view.classes[0].cls)
        show(f"{name}: from nothing", partial(problem_of, view, fleet, NOTHING_LEARNED), rounds=10)
        show(f"{name}: 3 classes moved", MovedClasses(view, fleet, state), rounds=50)
        show(f"{name}: nothing moved", partial(problem_of, view, fleet, state))
        show(f"{name}: all queues", partial(estimates, now))
        show(f"{name}: one forecast", partial(forecast, now, asked))
        problem = make_problem(view, now, move_s=1.0)
        show(f"{name}: for admission", partial(admission_signal, now, problem, plan_edf(problem)), rounds=20)
    return 0


def problem_of(view: ClusterView, fleet: Fleet, state: EstimatorState) -> tuple[EstimatorState, Problem]:
    """Learn from a view and build the planning problem."""
    state = learn(state, view, now_ns=NOW_NS, fleet=fleet)
    now: Snapshot = take_snapshot(view, now_ns=NOW_NS, fleet=fleet, state=state)
    return state, make_problem(view, now, move_s=1.0)


class MovedClasses:
    """Step in which three classes have a tenth more answers than in the last one."""

    def __init__(self, view: ClusterView, fleet: Fleet, state: EstimatorState) -> None:
        self._views = self._moving(view)
        self._fleet = fleet
        self._state = state

    def __call__(self) -> None:
        """Take one step."""
        self._state, _ = problem_of(next(self._views), self._fleet, self._state)

    @staticmethod
    def _moving(view: ClusterView) -> Iterator[ClusterView]:
        rng = np.random.default_rng(1)
        answers = [each.lengths.answers for each in view.classes]
        views = []
        for step in range(50):
            classes = list(view.classes)
            for at in range(3):
                moved = (3 * step + at) % len(classes)
                answers[moved] = round(answers[moved] * 1.1)
                classes[moved] = replace(classes[moved], lengths=make_lengths(rng, answers[moved]).value)
            view = replace(view, classes=tuple(classes))
            views.append(view)
        return iter(views)


def make_lengths(rng: np.random.Generator, answers: int) -> LengthStats:
    """Draw log-normal lengths."""
    stats = LengthStats()
    for tokens in rng.lognormal(5.0, 0.8, answers).round().astype(int).tolist():
        stats.count(tokens + 1, Outcome.STOP, 2000)
    return stats


def make_fleet(size: Size) -> Fleet:
    """Build a fleet with one model under several names."""
    shipped = {kind: find_profile(builtin_profiles(), "mistral-7b", kind) for kind in size.kinds}
    models = [ModelId(f"m{n}") for n in range(size.models)]
    return Fleet(
        kinds={kind: Kind(host_memory_bytes=10, models=dict.fromkeys(models, COST)) for kind in size.kinds},
        profiles={(model, kind): shipped[kind] for model in models for kind in size.kinds},
    )


def make_view(size: Size) -> ClusterView:
    """Build a view in which every class has groups, and every instance a queue of them."""
    rng = np.random.default_rng(0)
    classes = []
    for at in range(size.classes):
        slo = ("deadline-20s", 20_000.0) if at % 4 else ("ttft-2s", 2_000.0)
        cls = RequestClass(ModelId(f"m{at % size.models}"), slo[0], f"c{at}", target_ms=slo[1])
        number = size.groups // size.classes
        # All but the newest are full; requests of the oldest three have been pulled.
        groups = tuple(
            Group(
                id=GroupId(f"{at}-{n}"),
                cls=cls,
                seq=n,
                count=256 if n < number - 1 else int(rng.integers(1, 257)),
                pulled=int(rng.integers(0, 100)) if n < min(3, number - 1) else 0,
                sealed=n < number - 1,
                head_arrival_ns=NOW_NS,
            )
            for n in range(number)
        )
        classes.append(
            ClassView(
                cls=cls,
                queued=sum(group.remaining for group in groups),
                groups=groups,
                newest_arrival_ns=NOW_NS + 10,
                mean_prompt_tokens=500.0,
                var_prompt_tokens=90_000.0,
                mean_max_tokens=1024.0,
                lengths=make_lengths(rng, 200).value,
            )
        )
    everything = [group for each in classes for group in each.groups]
    shuffled = [everything[at] for at in rng.permutation(len(everything))]
    instances = tuple(_instance(at, size) for at in range(size.instances))
    queues = tuple(
        VirtualQueue(instance=each.id, groups=tuple(shuffled[at :: size.instances]))
        for at, each in enumerate(instances)
    )
    return ClusterView(classes=tuple(classes), instances=instances, queues=queues)


def _instance(at: int, size: Size) -> InstanceStatus:
    loaded = ModelId(f"m{at % size.models}")
    return InstanceStatus(
        holder=Holder(InstanceId(f"i{at:03d}"), SessionId("s")),
        accelerator=size.kinds[at % len(size.kinds)],
        models=tuple(ModelId(f"m{n}") for n in range(size.models)),
        active_model=loaded,
        engines=((loaded, EngineState.AWAKE),),
        capacity=EngineCapacity(kv_tokens=100_000, block_tokens=16, seqs_max=64, context_tokens=8192),
        running=64,
        kv_used_tokens=40_000,
    )


if __name__ == "__main__":
    raise SystemExit(main())
