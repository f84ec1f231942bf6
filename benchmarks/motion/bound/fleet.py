"""Time of the instances: when each may work, how fast, and what the first start of a model takes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from benchmarks.motion.bound.work import FloatArray, Prices, prices
from qlm.domain.ids import ModelId
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.cluster.engine_driver import REPORT_ITERATIONS
from qlm.simulator.scenario import Fault, KillEngine, KillInstance, Scenario, SimulatedInstance, SlowInstance

LATEST_S: Final = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """First start of a model on an instance where it was not awake from the start.

    Attributes:
        costs_s: Time of the instance that it takes at least, weights already in host memory.
        earliest_s: Earliest time at which the model can be awake.
    """

    costs_s: float
    earliest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Instances that differ in nothing but the model that is awake at first.

    Attributes:
        size: Number of instances.
        awake: Instances on which a model is awake at first, by its index.
        prices: Least times of each model that they serve.
        starts: First start of each model.
        slowness_min: Least factor on all durations.
        available_s: Time until an edge in which one instance can work, at the speed of its profile.
    """

    size: int
    awake: Mapping[int, int]
    prices: Mapping[int, Prices]
    starts: Mapping[int, Start]
    slowness_min: float
    available_s: FloatArray


def pools(scenario: Scenario, edges_s: FloatArray) -> list[Pool]:
    """Return the instances of a scenario, equal ones together."""
    groups: dict[object, list[SimulatedInstance]] = {}
    for instance in scenario.instances:
        disturbed = any(getattr(each, "instance", None) == instance.id for each in scenario.faults)
        key = instance.id if disturbed else (instance.kind, frozenset(instance.models))
        groups.setdefault(key, []).append(instance)
    return [_pool(scenario, members, edges_s) for members in groups.values()]


def _pool(scenario: Scenario, members: Sequence[SimulatedInstance], edges_s: FloatArray) -> Pool:
    first = members[0]
    numbers = {model.id: m for m, model in enumerate(scenario.models)}
    faults = [each for each in scenario.faults if getattr(each, "instance", None) == first.id]
    profiles = {model: scenario.true_profile(model, first.kind) for model in first.models}
    factors = slowness(faults)
    slowest_s = max(_longest_s(scenario, first, model, each) for model, each in profiles.items())
    slowest_s *= max([1.0, *(factor for _, _, factor in factors)])
    least = _least(factors, float(edges_s[-1]))
    killed = any(isinstance(each, KillInstance | KillEngine) for each in faults)
    unload_s = 0.0 if killed else min(each.unload_s for each in profiles.values())
    starts = {numbers[model]: _start(each, unload_s, least) for model, each in profiles.items()}
    awake: dict[int, int] = {}
    for member in members:
        model = numbers[member.models[0]]
        awake[model] = awake.get(model, 0) + 1
    restart_s = least * min(each.costs_s for each in starts.values())
    return Pool(
        size=len(members),
        awake=awake,
        prices={numbers[m]: _prices(scenario, first, m, each) for m, each in profiles.items()},
        starts=starts,
        slowness_min=least,
        available_s=available_s(edges_s, factors, _away(faults, restart_s), grace_s=slowest_s),
    )


def _prices(scenario: Scenario, instance: SimulatedInstance, model: ModelId, true: Profile) -> Prices:
    known = scenario.fleet.profiles[model, instance.kind]
    return prices(true, seqs_max=known.seqs_max, kv_tokens=known.kv_tokens)


def _start(profile: Profile, unload_s: float, slowness_min: float) -> Start:
    saved_s = max(0.0, profile.swap_reload_s - profile.swap_warm_s)
    fetched_s = max(0.0, profile.swap_cold_s - saved_s)
    up_s = min(unload_s + profile.swap_cold_s, max(unload_s, profile.swap_reload_s) + fetched_s)
    return Start(costs_s=unload_s + fetched_s, earliest_s=slowness_min * up_s)


def _longest_s(scenario: Scenario, instance: SimulatedInstance, model: ModelId, true: Profile) -> float:
    """Return the longest time for which a speed may last after it has changed: a run, or a swap."""
    of, known = true.iteration, scenario.fleet.profiles[model, instance.kind]
    context = known.seqs_max * true.context_tokens
    most = max(true.batched_tokens_max, known.seqs_max)
    mixed_ms = of.ms(
        tokens=most,
        context_tokens=context,
        sequences=known.seqs_max,
        pairs=most * true.context_tokens,
        mixed=True,
    )
    decode_ms = of.ms(tokens=known.seqs_max, context_tokens=context, sequences=known.seqs_max, mixed=False)
    swap_s = max(true.swap_cold_s, true.swap_reload_s, true.swap_warm_s) + true.unload_s
    return max(mixed_ms / 1e3, REPORT_ITERATIONS * decode_ms / 1e3, swap_s)


Spell = tuple[float, float, float]
"""Begin, end and factor of a time in which an instance has another speed, seconds."""


def slowness(faults: Iterable[Fault]) -> list[Spell]:
    """Return the times at which an instance has another speed; the end of one ends all."""
    slow = sorted((each for each in faults if isinstance(each, SlowInstance)), key=lambda each: each.at_s)
    steps = sorted({at for each in slow for at in (each.at_s, each.at_s + each.for_s)})
    spells = []
    for begin_s, end_s in pairwise(steps):
        running = [each.factor for each in slow if each.at_s <= begin_s < each.at_s + each.for_s]
        if running:
            # Overlapping faults end together, and which one holds is a matter of their order.
            mixed = len(running) > 1 or any(each.at_s + each.for_s == begin_s for each in slow)
            factor = min([1.0, *running]) if mixed else running[0]
            spells.append((-LATEST_S if begin_s <= 0 else begin_s, end_s, factor))
    return spells


def _least(spells: Sequence[Spell], until_s: float) -> float:
    """Return the least factor until a time."""
    covers = [factor for begin_s, end_s, factor in spells if begin_s <= 0 and end_s >= until_s]
    return covers[0] if len(spells) == 1 and covers else min([1.0, *(factor for _, _, factor in spells)])


def _away(faults: Iterable[Fault], restart_s: float) -> list[tuple[float, float]]:
    """Return when an instance is dead, or starts its first model again."""
    kills = sorted((each for each in faults if isinstance(each, KillInstance)), key=lambda each: each.at_s)
    back = sorted(each.at_s + each.down_s for each in kills)
    return [(each.at_s, min(at_s for at_s in back if at_s >= each.at_s) + restart_s) for each in kills]


def available_s(
    edges_s: FloatArray, spells: Sequence[Spell], away: Sequence[tuple[float, float]], *, grace_s: float
) -> FloatArray:
    """Return the time until each edge in which an instance can work, at the speed of its profile.

    Args:
        edges_s: Times.
        spells: Times of other speeds.
        away: Times without any work.
        grace_s: Time for which what has begun keeps the speed with which it began.
    """
    points = {*edges_s.tolist(), *(at for pair in away for at in pair)}
    for begin_s, end_s, _ in spells:
        points |= {begin_s, begin_s + grace_s, end_s, end_s + grace_s}
    inside = np.array(sorted(at for at in points if edges_s[0] <= at <= edges_s[-1]))
    middles = (inside[:-1] + inside[1:]) / 2
    rates = np.array([_rate(at, spells, away, grace_s) for at in middles])
    total = np.concatenate([[0.0], np.cumsum(rates * np.diff(inside))])
    return np.asarray(np.interp(edges_s, inside, total))


def _rate(at_s: float, spells: Sequence[Spell], away: Sequence[tuple[float, float]], grace_s: float) -> float:
    """Return the highest speed with which something may run at a time."""
    if any(begin_s < at_s < end_s for begin_s, end_s in away):
        return 0.0
    factors = [factor for begin_s, end_s, factor in spells if begin_s <= at_s <= end_s + grace_s]
    usual = not any(begin_s + grace_s <= at_s <= end_s for begin_s, end_s, _ in spells)
    return 1 / min([*factors, *([1.0] if usual else [])])
