"""An instance whose models take turns: how long its rounds are, and what they lose, by a fluid model.

An instance with several models serves each of them once in a round. A short round meets tight slacks, but its
swaps take a large share of the time; a long one meets them only while their model is awake. So a model may
reside on an instance, and be left only for visits to others. The best length is chosen by what it loses.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from qlm.domain.ids import ModelId
from qlm.planner.placement.problem import ModelDemand, PlacedInstance

SLACK_SHARE: Final = 0.8
"""Share of a slack that the absence of a model may take."""

LONGEST_S: Final = 600.0
"""Longest round: models are left alone for no longer, whatever their objectives."""

STEP: Final = 1.25
"""Least ratio of two lengths that are compared."""

FULL: Final = 0.85
"""Load from which an instance loses requests: arrivals come in bursts."""

CORNER: Final = 0.1
"""Width of the rise of the losses around `FULL`: near it, bursts already cost some requests."""


@dataclass(frozen=True, slots=True)
class Turns:
    """What an instance loses.

    Attributes:
        lost_rps: Requests per second that miss their objective, those without one by their weight.
        load: Share of the time that work and swaps take; over 1 if they do not fit.
        worth_rps: Requests per second that come, by their weight: the most that can be lost.
    """

    lost_rps: float
    load: float
    worth_rps: float


def turns(
    instance: PlacedInstance, shares: Mapping[ModelId, float], demands: Mapping[ModelId, ModelDemand]
) -> Turns:
    """Return what an instance loses with the best length of its rounds.

    Args:
        instance: The instance.
        shares: Its models, each with the share of its requests that comes here.
        demands: Of all models.
    """
    work = work_of(instance, shares, demands)
    worth_rps = sum(share * demands[model].worth_rps for model, share in shares.items())
    load = sum(work.values())
    if len(shares) < 2:
        return Turns(worth_rps * lost_share(load), load, worth_rps)
    swaps_s = _round_swaps_s(instance, shares, demands)
    best = None
    for round_s in _lengths_s(shares, demands):
        each = load + swaps_s / round_s
        absent_rps = _lost_in_absence(work, swaps_s / round_s, round_s, shares, demands)
        lost_rps = absent_rps + (worth_rps - absent_rps) * lost_share(each)
        if best is None or lost_rps < best.lost_rps:
            best = Turns(lost_rps, each, worth_rps)
    assert best is not None
    return best


def work_of(
    instance: PlacedInstance, shares: Mapping[ModelId, float], demands: Mapping[ModelId, ModelDemand]
) -> dict[ModelId, float]:
    """Return the share of the time of an instance that each of its models needs, without swaps."""
    return {
        model: share * demands[model].rate_rps * demands[model].kinds[instance.kind].service_s
        for model, share in shares.items()
    }


def _lengths_s(shares: Mapping[ModelId, float], demands: Mapping[ModelId, ModelDemand]) -> Iterator[float]:
    """Yield the lengths that can be best: those that just meet a slack, and the longest."""
    slacks = {slack_s for model in shares for slack_s, rate in demands[model].objectives if rate}
    last_s = 0.0
    for slack_s in sorted(slacks):
        round_s = SLACK_SHARE * slack_s
        if round_s >= LONGEST_S:
            break
        if round_s > STEP * last_s:
            yield round_s
            last_s = round_s
    yield LONGEST_S


def _lost_in_absence(
    work: Mapping[ModelId, float],
    swapping: float,
    round_s: float,
    shares: Mapping[ModelId, float],
    demands: Mapping[ModelId, ModelDemand],
) -> float:
    """Return the requests per second whose slack ends while another model is awake.

    A model is awake in proportion to its work; what work and swaps leave goes to the one that gains most.
    """
    load = sum(work.values())
    awake_share = max(0.0, 1.0 - swapping) / max(load, 1.0 - swapping, 1e-9)
    idle = max(0.0, 1.0 - swapping - load)
    lost_rps, spared_rps = 0.0, 0.0
    for model, share in shares.items():
        awake = work[model] * awake_share
        lost = share * demands[model].lost_rps(awake, round_s)
        lost_rps += lost
        if idle:
            spared_rps = max(spared_rps, lost - share * demands[model].lost_rps(awake + idle, round_s))
    return lost_rps - spared_rps


def _round_swaps_s(
    instance: PlacedInstance, shares: Mapping[ModelId, float], demands: Mapping[ModelId, ModelDemand]
) -> float:
    """Return the time of one round that goes to swaps and to what they discard."""
    here = {model: demands[model].kinds[instance.kind] for model in shares}
    asleep_bytes = sum(each.weights_bytes for each in here.values())
    asleep_bytes -= max((each.weights_bytes for each in here.values()), default=0)
    fits = asleep_bytes <= instance.host_memory_bytes
    swaps_s = sum(each.warm_s if fits else each.reload_s for each in here.values())
    refill_s = sum(
        share * demands[model].rate_rps * here[model].answer_s * here[model].recompute_s
        for model, share in shares.items()
    )
    return swaps_s + refill_s


def lost_share(load: float) -> float:
    """Return the share of requests that are late at a load: max(0, 1 - FULL / load) with a smooth corner."""
    over = (load - FULL) / CORNER
    excess = CORNER * (over if over > 30 else math.log1p(math.exp(over)))
    return excess / (FULL + excess)
