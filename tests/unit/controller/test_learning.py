"""What the estimator learns from views: lengths, speeds, capacities; and that it keeps what has not moved."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from qlm.controller.core.estimating.classes import class_posteriors
from qlm.controller.core.estimating.instances import BUSY_MAX_S, BUSY_MIN_S
from qlm.controller.core.estimating.snapshot import take_snapshot
from qlm.controller.core.estimating.state import NOTHING_LEARNED, EstimatorState, learn
from qlm.controller.core.history.model_answers import RESIDENCE_MIN_S
from qlm.domain.fleet import InstanceStatus, OpenAnswers, ServedWork
from qlm.domain.ids import InstanceId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.length_histogram import length_bin
from qlm.domain.view import ClassView, ClusterView
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.served_work import served_work_s
from support.batch_slots import CAP, STEP_S, draw
from support.estimating import (
    BATCH,
    CHAT,
    KIND,
    NOW_NS,
    OTHER,
    M,
    N,
    S,
    capacity,
    class_view,
    cluster,
    counted,
    groups_of,
    instance,
    steady_fleet,
    steady_profile,
)

PLACES = 16
FLEET = steady_fleet(PLACES)
LENGTHS = draw(np.random.default_rng(3), 4000)


def view_of(*classes: ClassView, instances: tuple[InstanceStatus, ...] = (instance(),)) -> ClusterView:
    return cluster(*classes, instances=instances, queues={})


def learn_now(state: EstimatorState, view: ClusterView) -> EstimatorState:
    return learn(state, view, now_ns=NOW_NS, fleet=FLEET)


def seen(answers: int) -> ClassView:
    return class_view(CHAT, counted(LENGTHS[:answers]), *groups_of(CHAT, 5))


def test_a_view_that_says_nothing_new_changes_nothing() -> None:
    view = view_of(seen(100))
    state = learn_now(NOTHING_LEARNED, view)
    assert learn_now(state, view) is state
    assert learn_now(state, view_of(seen(100))) is state, "equal counts, in other objects"


def test_a_posterior_is_worked_out_anew_only_after_a_twentieth_more_answers() -> None:
    state = learn_now(NOTHING_LEARNED, view_of(seen(1000)))
    assert learn_now(state, view_of(seen(1050))) is state
    moved = learn_now(state, view_of(seen(1051)))
    assert moved.classes[CHAT] is not state.classes[CHAT]
    assert moved.times.table is not state.times.table


def test_only_what_moved_is_worked_out_anew() -> None:
    other = class_view(BATCH, counted(LENGTHS[:500]))
    before = learn_now(NOTHING_LEARNED, view_of(seen(1000), other))
    after = learn_now(before, view_of(seen(2000), other))
    assert after.times.entries[BATCH, KIND] is before.times.entries[BATCH, KIND]
    assert after.times.entries[CHAT, KIND] is not before.times.entries[CHAT, KIND]


def with_prompts(tokens: float) -> ClassView:
    return replace(seen(1000), mean_prompt_tokens=tokens)


def with_limits(tokens: float) -> ClassView:
    return replace(seen(1000), mean_max_tokens=tokens)


@pytest.mark.parametrize(("having", "little", "much"), [(with_prompts, 504, 506), (with_limits, 510, 530)])
def test_other_prompts_and_limits_move_a_class_too(
    having: Callable[[float], ClassView], little: float, much: float
) -> None:
    state = learn_now(NOTHING_LEARNED, view_of(having(500.0)))
    assert learn_now(state, view_of(having(little))) is state
    assert learn_now(state, view_of(having(much))) is not state


def test_a_new_class_is_taken_to_be_like_the_others_of_its_model() -> None:
    alone = class_posteriors(view_of(class_view(BATCH, counted(LENGTHS[:0]))), {})[BATCH]
    short = class_view(CHAT, counted(np.full(200, 12.0)))
    both = class_posteriors(view_of(class_view(BATCH, counted(LENGTHS[:0])), short), {})
    assert both[BATCH].lengths.length().mean < 25 < alone.lengths.length().mean
    of_another_model = replace(short, cls=OTHER)
    apart = class_posteriors(view_of(class_view(BATCH, counted(LENGTHS[:0])), of_another_model), {})
    assert apart[BATCH].lengths.length().mean == alone.lengths.length().mean


def test_a_class_that_comes_stays_known_while_nothing_of_it_waits() -> None:
    """A view tells only of classes with waiting requests or open groups."""
    state, other = NOTHING_LEARNED, class_view(BATCH, counted(LENGTHS[:300]))
    for number, finished in enumerate((100, 160)):
        chat = replace(seen(400), finished=finished)
        now_ns = NOW_NS + 20 * number * S
        state = learn(state, view_of(chat, other), now_ns=now_ns, fleet=FLEET)
    known = state.classes[CHAT]
    state = learn(state, view_of(other), now_ns=NOW_NS + 41 * S, fleet=FLEET)
    assert state.classes[CHAT] is known
    assert (CHAT, KIND) in state.times.entries
    assert CHAT not in learn(state, view_of(other), now_ns=NOW_NS + 7200 * S, fleet=FLEET).classes


def test_answers_of_its_own_outweigh_the_pool() -> None:
    own, others = counted(np.full(300, 100.0)), counted(np.full(3000, 10.0))
    known = class_posteriors(view_of(class_view(CHAT, own), class_view(BATCH, others)), {})
    assert known[CHAT].lengths.length(CAP).mean == pytest.approx(100, rel=0.03)


def test_answers_that_run_on_count_as_longer_than_they_are_yet() -> None:
    """Places that began empty 800 tokens ago: short answers have ended more often than they begin."""
    answers = np.clip(draw(np.random.default_rng(8), 500 * 400), 1, CAP - 1).astype(int).reshape(500, 400)
    ends = np.cumsum(answers, axis=1)
    ended = answers[ends <= 800]
    ages = 800 - np.where(ends <= 800, ends, 0).max(axis=1)
    bins = np.array([length_bin(max(1, int(age))) for age in ages])
    counts = [(int(at), int((bins == at).sum()), int(ages[bins == at].sum())) for at in np.unique(bins)]
    open_answers = OpenAnswers(cls=CHAT, counts=tuple(counts))
    other = OpenAnswers(cls=BATCH, counts=((length_bin(500), 400, 200_000),))
    slow, fast = (ServedWork(request_s=1.1 * s, ended=1) for s in (RESIDENCE_MIN_S, RESIDENCE_MIN_S / 2))
    at_work = replace(instance(running=500), answers=(open_answers, other), work=slow)
    instances = (at_work, instance("gpu-1"))
    view = class_view(CHAT, counted(ended))
    known = class_posteriors(view_of(view, instances=instances), {})[CHAT].lengths.length(CAP).mean
    alone = class_posteriors(view_of(view), {})[CHAT].lengths.length(CAP).mean
    assert known == pytest.approx(float(answers.mean()), rel=0.05)
    assert alone < 0.85 * float(answers.mean())
    stale = class_posteriors(view_of(view, instances=(replace(at_work, work=fast),)), {})[CHAT]
    stale_mean = stale.lengths.length(CAP).mean
    assert stale_mean == pytest.approx(alone, rel=0.01), "many of them have ended since"


def test_limits_that_differ_show_in_the_variance_of_answers_that_reach_them() -> None:
    """All were cut off: an answer is as long as its limit."""
    view = class_view(CHAT, counted(np.full(500, CAP)))
    even = class_posteriors(view_of(view), {})[CHAT].workload.output
    spread = class_posteriors(view_of(replace(view, var_max_tokens=200.0**2)), {})[CHAT].workload.output
    assert spread.var - even.var == pytest.approx(200.0**2, rel=0.05)


def working(seconds: float, *, slower: float = 1.0, base: InstanceStatus | None = None) -> InstanceStatus:
    """What an instance says after so many seconds of a full batch of 100-token answers."""
    iterations = seconds / (STEP_S * slower)
    work = ServedWork(
        busy_s=seconds,
        request_s=PLACES * seconds,
        prompt_tokens=round(iterations * PLACES / 100),
        output_tokens=round(iterations * PLACES),
        ended=round(iterations * PLACES / 100),
    )
    return replace(base or instance(running=PLACES), work=work)


def after_work(*statuses: InstanceStatus) -> EstimatorState:
    state = NOTHING_LEARNED
    for status in statuses:
        state = learn_now(state, view_of(seen(100), instances=(status,)))
    return state


@pytest.mark.parametrize("slower", [0.8, 1.0, 1.5])
def test_an_instance_is_found_to_be_as_slow_as_it_is(slower: float) -> None:
    state = after_work(*(working(10.0 * n, slower=slower) for n in range(40)))
    correction = state.instances[InstanceId("gpu-0")].corrections[M]
    assert correction.factor == pytest.approx(slower, rel=0.06)
    assert correction.uncertainty < 0.05


def test_what_is_well_known_is_compared_over_longer_times() -> None:
    statuses = [working(10.0 * n) for n in range(61)]
    state = after_work(*statuses)
    known = state.instances[InstanceId("gpu-0")]
    assert known.since in statuses[-3:], "the last comparison was not long ago"
    assert learn_now(state, view_of(seen(100), instances=(working(known.since.work.busy_s + 11.0),))) is state
    later = working(known.since.work.busy_s + BUSY_MAX_S)
    after = learn_now(state, view_of(seen(100), instances=(later,))).instances[InstanceId("gpu-0")]
    assert after.since is later


def test_what_its_kind_has_in_common_is_assumed_of_an_instance_that_was_not_watched() -> None:
    state = after_work(*(working(10.0 * n, slower=1.4) for n in range(40)))
    view = view_of(seen(100), instances=(working(400.0, slower=1.4), instance("gpu-1", running=PLACES)))
    state = learn_now(state, view)
    now = take_snapshot(view, now_ns=NOW_NS, fleet=FLEET, state=state)
    assert now.instances[InstanceId("gpu-1")].correction.factor == pytest.approx(1.4, rel=0.06)
    assert now.pooled[M, KIND].factor == pytest.approx(1.4, rel=0.06)


@pytest.mark.parametrize(
    "later",
    [
        working(BUSY_MIN_S - 0.1),
        replace(working(10.0), work=replace(working(10.0).work, request_s=15.0)),
        replace(working(10.0), work=replace(working(10.0).work, output_tokens=50)),
        replace(working(10.0), active_model=N),
        replace(working(10.0), holder=Holder(InstanceId("gpu-0"), SessionId("another life"))),
    ],
    ids=["too short", "almost empty batch", "hardly any output", "another model", "another life"],
)
def test_work_that_says_too_little_is_not_compared(later: InstanceStatus) -> None:
    state = after_work(working(0.0), later)
    assert state.instances[InstanceId("gpu-0")].corrections == {}


def test_sums_that_begin_anew_are_a_new_beginning_and_what_was_learned_stays() -> None:
    state = after_work(*(working(10.0 * n, slower=1.4) for n in range(40)), working(0.0))
    factor = state.instances[InstanceId("gpu-0")].corrections[M].factor
    assert factor == pytest.approx(1.4, rel=0.06)
    state = learn_now(state, view_of(seen(100), instances=(working(10.0, slower=1.4),)))
    assert state.instances[InstanceId("gpu-0")].corrections[M].factor == pytest.approx(factor, rel=0.02)


def test_served_work_takes_what_the_profile_says() -> None:
    work = working(20.0).work
    for started in (0, work.ended, 3 * work.ended):
        predicted_s = served_work_s(steady_profile(PLACES), work, started=started)
        assert predicted_s == pytest.approx(20.0, rel=0.03)


def test_prompts_that_were_withdrawn_took_no_time() -> None:
    work = working(20.0).work
    given = replace(work, prompt_tokens=work.prompt_tokens + 9000, withdrawn_tokens=9000)
    line = IterationTime(host_ms=0.0, linear_ms=((1, 30.0), (1001, 130.0)), kv_ms=0.0)
    profile = replace(steady_profile(PLACES), iteration=line)
    predicted = [served_work_s(profile, each, started=work.ended) for each in (work, given)]
    assert predicted[1] == predicted[0]
    assert served_work_s(profile, replace(given, withdrawn_tokens=0), started=work.ended) > predicted[0]


def test_a_profile_takes_over_the_capacity_that_engines_report() -> None:
    quarter = replace(instance(), capacity=capacity(PLACES // 4))
    state = learn_now(NOTHING_LEARNED, view_of(seen(100), instances=(quarter,)))
    assert state.times.entries[CHAT, KIND].times.batch == PLACES // 4
    assert learn_now(state, view_of(seen(100), instances=(quarter,))) is state
    silent = learn_now(state, view_of(seen(100)))
    assert silent.times.entries[CHAT, KIND].times.batch == PLACES // 4, "what was reported stands"
    two = (quarter, replace(instance("gpu-1"), capacity=capacity(PLACES // 2)))
    assert learn_now(state, view_of(seen(100), instances=two)).profiles[M, KIND].seqs_max == PLACES // 4


def test_a_profile_takes_over_the_token_budget_that_engines_report() -> None:
    profile = FLEET.profiles[M, KIND]
    budgets = [replace(capacity(PLACES), batched_tokens_max=tokens) for tokens in (None, 512, 256)]
    silent, plain, less = (replace(instance(f"gpu-{n}"), capacity=each) for n, each in enumerate(budgets))
    for instances, expected in (
        ((silent,), profile.batched_tokens_max),
        ((plain,), 512),
        ((plain, less), 256),
    ):
        state = learn_now(NOTHING_LEARNED, view_of(seen(100), instances=instances))
        assert state.profiles[M, KIND].batched_tokens_max == expected
        assert learn_now(state, view_of(seen(100), instances=instances)) is state
