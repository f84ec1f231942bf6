"""Random planning problems for the planner's tests and benchmarks; seeded, the same on every machine.

* `small`: a handful of groups that exact methods and brute force can settle.
* `medium`: 20 to 200 groups, very different from one another.
* `live`: what a controller plans: 400 000 queued requests as 1 600 groups, 100 instances, 120 % load.
* `changed`: a problem some seconds after it was planned, with a share of its groups replaced.

Times are in seconds. Drains have the form that the controller gives them: n requests take n x on average,
with variance n v + n^2 c, where v is their own spread and c comes from uncertainty about the class's mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.planner_live import HOST_MEMORY_BYTES, NOW_S, Form, changed, live
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.problem import Instance, Kind, ModelCost, PlannedGroup, Problem
from qlm.rct_estimator.normal import NOTHING, Normal

__all__ = ["changed", "live", "medium", "small"]


def small(seed: int, groups: int, instances: int, models: int, overloaded: bool) -> Problem:
    """Draw a tiny problem of one or two kinds; equal priorities, at least one place for each group.

    Args:
        seed: Of the draw.
        groups: Number of groups.
        instances: Number of instances.
        models: Number of models.
        overloaded: Deadlines within the time that the fleet needs, else mostly beyond.
    """
    rng = np.random.default_rng([seed, groups, instances, models, overloaded])
    names = [f"m{at}" for at in range(models)]
    kinds = _kinds(rng, names, int(rng.integers(1, 3)))
    fleet = _fleet(rng, instances, kinds)
    stochastic = rng.random() < 0.7
    drafts = [
        _draft(rng, f"g{at:02d}", names, kinds, int(rng.integers(1, 40)), stochastic=stochastic)
        for at in range(groups)
    ]
    horizon_s = _horizon_s(drafts, fleet)
    stretch = (0.1, 0.7) if overloaded else (0.6, 2.0)
    deadlines = [
        None if rng.random() < 0.1 else NOW_S + horizon_s * float(rng.uniform(*stretch)) for _ in drafts
    ]
    dated = tuple(replace(g, deadline_s=d) for g, d in zip(drafts, deadlines, strict=True))
    return _problem(rng, kinds, fleet, dated)


def medium(seed: int, groups: int) -> Problem:
    """Draw a problem of 20 to 200 groups in three classes of objectives.

    One model or many, one to three kinds, instances idle, busy, warm or cold; tight or loose; with
    present queues and a price of moving, or without.

    Args:
        seed: Of the draw.
        groups: How many.
    """
    rng = np.random.default_rng([seed, groups])
    names = [f"m{at:02d}" for at in range(int(rng.choice([1, 2, 4, 8])))]
    kinds = _kinds(rng, names, int(rng.integers(1, 4)))
    fleet = _fleet(rng, max(2, groups // int(rng.integers(5, 16))), kinds)
    drafts = [
        _draft(rng, f"g{at:03d}", names, kinds, int(rng.integers(1, 300)), stochastic=True)
        for at in range(groups)
    ]
    horizon_s = _horizon_s(drafts, fleet)
    stretch = float(rng.uniform(0.4, 2.0))
    dated = tuple(replace(g, deadline_s=_deadline_s(rng, horizon_s * stretch)) for g in drafts)
    return _problem(rng, kinds, fleet, dated, queued=rng.random() < 0.5)


def _kinds(rng: np.random.Generator, names: Sequence[str], count: int) -> dict[str, Kind]:
    """Kind 0 runs all models; others lack each with probability 0.2."""
    kinds = {}
    for at in range(count):
        models = {}
        for name in names:
            warm_s = float(rng.uniform(0.5, 5.0))
            cost = ModelCost(
                weights_bytes=int(rng.integers(2, 60)) * 10**9,
                swap_warm_s=warm_s,
                swap_cold_s=warm_s * float(rng.uniform(2.0, 20.0)),
                unload_s=float(rng.choice([0.0, rng.uniform(0.1, 2.0)])),
            )
            if at == 0 or rng.random() > 0.2:
                models[ModelId(name)] = cost
        kinds[f"k{at}"] = Kind(host_memory_bytes=HOST_MEMORY_BYTES, models=models)
    return kinds


def _fleet(rng: np.random.Generator, count: int, kinds: Mapping[str, Kind]) -> tuple[Instance, ...]:
    """The first instance is of kind 0, so that each model runs somewhere."""
    fleet = []
    for at in range(count):
        kind = "k0" if at == 0 else str(rng.choice(sorted(kinds)))
        runs = sorted(kinds[kind].models)
        loaded = ModelId(str(rng.choice(runs))) if runs and rng.random() < 0.7 else None
        busy = Normal(float(rng.uniform(0, 8)), float(rng.uniform(0, 4))) if rng.random() < 0.5 else NOTHING
        warm = tuple(m for m in runs if m != loaded and rng.random() < 0.4)
        fleet.append(
            Instance(id=InstanceId(f"i{at:02d}"), kind=kind, loaded_model=loaded, warm_models=warm, busy=busy)
        )
    return tuple(fleet)


def _draft(
    rng: np.random.Generator,
    id: str,
    names: Sequence[str],
    kinds: Mapping[str, Kind],
    requests: int,
    *,
    stochastic: bool,
) -> PlannedGroup:
    """A group without a deadline yet."""
    model = ModelId(str(rng.choice(names)))
    each_s, tail_s, cv = (
        float(rng.uniform(0.05, 0.5)),
        float(rng.uniform(0.1, 8.0)),
        float(rng.uniform(0.3, 2)),
    )
    uncertainty = float(rng.uniform(0, 0.2))
    time = {}
    for kind, of_kind in kinds.items():
        faster = float(rng.uniform(0.25, 1.5))
        own_var, common_var = (cv * each_s * faster) ** 2, (uncertainty * each_s * faster) ** 2
        form = Form(
            each_s=each_s * faster,
            own_var=own_var if stochastic else 0.0,
            common_var=common_var if stochastic else 0.0,
            tail=Normal(tail_s * faster, (0.5 * tail_s * faster) ** 2 if stochastic else 0.0),
        )
        if model in of_kind.models and (kind == "k0" or rng.random() < 0.9):
            time[kind] = form.time(requests)
    return PlannedGroup(id=GroupId(id), model=model, requests=requests, deadline_s=None, time=time)


def _deadline_s(rng: np.random.Generator, horizon_s: float) -> float | None:
    """Interactive, minutes or none, each with probability 1/3; a few are late already."""
    slo = int(rng.integers(0, 3))
    if slo == 0:
        return NOW_S + float(rng.uniform(-1.0, 20.0))
    return NOW_S + float(rng.uniform(0.1, 1.0)) * horizon_s if slo == 1 else None


def _problem(
    rng: np.random.Generator,
    kinds: dict[str, Kind],
    fleet: tuple[Instance, ...],
    groups: tuple[PlannedGroup, ...],
    *,
    queued: bool = False,
) -> Problem:
    """Put the parts together; with `queued`, most groups stand in random queues and moving has a price."""
    queues: dict[InstanceId, list[GroupId]] = {instance.id: [] for instance in fleet}
    for group in groups:
        hosts = [i.id for i in fleet if i.kind in group.time]
        if queued and rng.random() < 0.8:
            queues[hosts[int(rng.integers(len(hosts)))]].append(group.id)
    return Problem(
        now_s=NOW_S,
        kinds=kinds,
        instances=tuple(replace(i, queue=tuple(queues[i.id])) for i in fleet),
        groups=groups,
        move_s=float(rng.choice([0.0, 10.0])) if queued else 0.0,
    )


def _horizon_s(groups: Sequence[PlannedGroup], fleet: Sequence[Instance]) -> float:
    """About when the fleet would be through with everything, swaps left out."""
    present = {i.kind for i in fleet}
    best = [min(t.service.mean for k, t in g.time.items() if k in present) for g in groups]
    tails = [min(t.tail.mean for k, t in g.time.items() if k in present) for g in groups]
    return sum(best) / len(fleet) + max(tails) + sum(i.busy.mean for i in fleet) / len(fleet)
