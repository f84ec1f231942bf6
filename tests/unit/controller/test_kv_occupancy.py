"""What running requests hold of the KV cache, read from agents, beside what their classes say."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from qlm.controller.core.estimating.instances import InstanceHistory, KvCosts, KvReadings
from qlm.controller.core.estimating.kv_occupancy import (
    ANSWERS_PRIOR,
    BIAS_BOUNDS,
    DISPERSION_BOUNDS,
    kv_occupancies,
    model_mixtures,
)
from qlm.controller.core.estimating.state import NOTHING_LEARNED, learn
from qlm.domain.fleet import ServedWork
from qlm.domain.ids import InstanceId
from support.estimating import (
    CHAT,
    KIND,
    LENGTHS,
    NOW_NS,
    M,
    class_view,
    cluster,
    instance,
    steady_fleet,
)

VIEW = cluster(
    replace(class_view(CHAT, LENGTHS), mean_prompt_tokens=1000.0),
    instances=(instance("gpu-0"), instance("gpu-1")),
    queues={},
)
STATE = learn(NOTHING_LEARNED, VIEW, now_ns=NOW_NS, fleet=steady_fleet(16))
MIXED = model_mixtures(STATE.classes)
MEAN = STATE.classes[CHAT].workload


def histories_of(*readings: KvReadings) -> Mapping[InstanceId, InstanceHistory]:
    known = {}
    for status, each in zip(VIEW.instances, (*readings, KvReadings()), strict=False):
        known[status.id] = InstanceHistory(since=status, kv_readings={M: each})
    return known


def reading(per_request: float, answers: float) -> KvReadings:
    return KvReadings(kv_tokens=per_request * 400, requests=400, answers=answers)


def bias(*readings: KvReadings) -> float:
    return kv_occupancies(VIEW, histories_of(*readings), MIXED)[M, KIND].prompt_bias


def test_what_is_held_as_expected_changes_nothing() -> None:
    assert bias(reading(MEAN.context_tokens, 1000)) == pytest.approx(1.0)


@pytest.mark.parametrize("prompts", [0.8, 1.5])
def test_prompts_that_go_with_long_answers_are_learned(prompts: float) -> None:
    readings = MEAN.age_tokens + prompts * MEAN.prompt_tokens
    assert bias(reading(readings, 1e6)) == pytest.approx(prompts, rel=0.001)
    # Read many times over few answers, it counts as those answers.
    assert bias(reading(readings, ANSWERS_PRIOR)) == pytest.approx((prompts + 1) / 2)


def test_instances_of_a_kind_learn_together() -> None:
    low, high = (reading(MEAN.age_tokens + share * MEAN.prompt_tokens, 5e5) for share in (0.8, 1.2))
    assert bias(low, high) == pytest.approx(1.0, rel=0.001)


def test_what_cannot_be_is_not_believed() -> None:
    assert bias(reading(100 * MEAN.context_tokens, 1e9)) == pytest.approx(BIAS_BOUNDS[1], rel=1e-6)


def test_readings_are_forgotten_with_answers() -> None:
    old = KvReadings().read(replace(VIEW.instances[0], running=4, kv_used_tokens=8000), 0)
    new = old
    for _ in range(100):
        new = new.read(replace(VIEW.instances[0], running=4, kv_used_tokens=4000), 200)
    assert new.kv_tokens / new.requests == pytest.approx(1000, rel=0.01)
    assert new.answers == pytest.approx(2000, rel=0.1)
    assert old.read(VIEW.instances[0], 5) is old


def test_the_steady_state_goes_with_what_is_held() -> None:
    fleet = steady_fleet(64)
    tight = {key: replace(each, kv_tokens=20_000) for key, each in fleet.profiles.items()}
    fleet = replace(fleet, profiles=tight)
    state = learn(NOTHING_LEARNED, VIEW, now_ns=NOW_NS, fleet=fleet)
    readings = {M: reading(MEAN.age_tokens + 0.6 * MEAN.prompt_tokens, 1e6)}
    known = {id: replace(each, kv_readings=readings) for id, each in state.instances.items()}
    after = learn(replace(state, instances=known), VIEW, now_ns=NOW_NS, fleet=fleet)
    assert after.times.entries[CHAT, KIND].times.batch > 1.3 * state.times.entries[CHAT, KIND].times.batch


def cost_dispersion(costs: np.ndarray[tuple[int], np.dtype[np.float64]], answers: float) -> float:
    """What is learned from so many answers that cost as these do."""
    share = answers / len(costs)
    known = KvCosts(answers, share * float(costs.sum()), share * float((costs**2).sum()))
    histories = {
        id: replace(each, kv_costs={M: known})
        for id, each in histories_of(reading(MEAN.context_tokens, 1)).items()
    }
    return kv_occupancies(VIEW, histories, MIXED)[M, KIND].cost_dispersion


def test_the_dispersion_of_costs_is_learned_from_ended_requests() -> None:
    costs = np.random.default_rng(1).gamma(2.0, 1000.0, 5000)
    half = 0.5 / MEAN.cost_cv2(1.0)
    assert cost_dispersion(costs, 1e6) == pytest.approx(half, rel=0.05)
    assert cost_dispersion(costs, ANSWERS_PRIOR) == pytest.approx((half + 1) / 2, rel=0.05)
    assert cost_dispersion(np.ones(10), 1e9) == pytest.approx(DISPERSION_BOUNDS[0])
    assert bias(reading(MEAN.context_tokens, 1000)) == pytest.approx(1.0)


def test_costs_are_forgotten_with_answers() -> None:
    known = KvCosts()
    assert known.after(ServedWork(ended=7)) is known, "an agent that does not tell"
    for cost in (2.0, *(1.0,) * 100):
        work = ServedWork(ended=200, token_steps=200 * cost, token_step_squares=200 * cost**2)
        known = known.after(work)
    assert known.answers == pytest.approx(2000, rel=0.1)
    assert known.token_steps / known.answers == pytest.approx(1.0, rel=0.01)


def test_waits_vary_as_the_costs_do() -> None:
    fleet = steady_fleet(64)
    tight = {key: replace(each, kv_tokens=20_000) for key, each in fleet.profiles.items()}
    fleet = replace(fleet, profiles=tight)
    state = learn(NOTHING_LEARNED, VIEW, now_ns=NOW_NS, fleet=fleet)
    costs = KvCosts(1e6, 1e9, 1e12 * (1 + 0.5 * MEAN.cost_cv2(1.0)))
    readings = {M: reading(MEAN.context_tokens, 1000)}
    known = {
        id: replace(each, kv_readings=readings, kv_costs={M: costs}) for id, each in state.instances.items()
    }
    after = learn(replace(state, instances=known), VIEW, now_ns=NOW_NS, fleet=fleet)
    before_cv2, after_cv2 = (each.times.entries[CHAT, KIND].times.cv2 for each in (state, after))
    assert after_cv2 == pytest.approx(0.5 * before_cv2, rel=0.01)
