import itertools
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.agents.core.output.log import INTERVAL_MAX_NS, LATENESS_FACTOR
from qlm.domain.fleet import InstanceStatus
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.request import RequestMetadata
from qlm.domain.view import ClassView, ClusterView
from qlm.gateway.core.admission import Admit, Load, Refuse, decide, observe, overload
from qlm.gateway.core.admitted import Admitted
from qlm.gateway.core.limits import LATE_MAX_LEAST_S, GatewayLimits
from qlm.gateway.sessions.load.look_pauses import LOOK_SOON_S, LookPauses
from support.requests import a_request

CHAT = RequestClass(model=ModelId("m"), slo="ttft-1s")
BATCH = RequestClass(model=ModelId("m"), slo="batch")
S = 1_000_000_000


_number = itertools.count()


def request(cls: RequestClass, prompt_tokens: int = 10) -> RequestMetadata:
    return replace(a_request(f"r{next(_number)}", prompt_tokens=prompt_tokens).metadata(), cls=cls)


def view(*, queued: int = 0, finished: int = 0, draining: bool = False) -> ClusterView:
    status = InstanceStatus(
        holder=Holder(InstanceId("i"), SessionId("s")),
        accelerator="A10",
        models=(ModelId("m"),),
        draining=draining,
    )
    chat = ClassView(cls=CHAT, queued=queued, groups=(), finished=finished, mean_prompt_tokens=50)
    return ClusterView(classes=(chat,), instances=(status,), queues=())


def test_an_unseen_cluster_admits() -> None:
    assert decide(Load(), GatewayLimits(refuse_without_instance=True), CHAT, 10) == Admit()


def test_a_full_queue_refuses_with_429() -> None:
    limits = GatewayLimits(queue_depth_max=10)
    assert decide(Load(at_ns=0, waiting=9), limits, CHAT, 10) == Admit()
    verdict = decide(Load(at_ns=0, waiting=10), limits, CHAT, 10)
    assert isinstance(verdict, Refuse)
    assert (verdict.status, verdict.reason) == (429, "queue_full")


def test_what_was_accepted_since_the_look_counts() -> None:
    limits = GatewayLimits(queue_depth_max=10)
    load = Load(at_ns=0, waiting=9, accepted_since=1)
    assert isinstance(decide(load, limits, CHAT, 10), Refuse)


def test_requests_accepted_since_the_look_count_in_their_class_and_with_their_prompts() -> None:
    admitted, seen = Admitted(), observe(Load(), view(queued=1), 0)
    admitted.reserve(request(CHAT, prompt_tokens=30))
    load = admitted.added_to(seen)
    verdicts = [
        decide(load, GatewayLimits(class_depth_max=2), CHAT, 1),
        decide(load, GatewayLimits(queue_prompt_tokens_max=100), BATCH, 21),
    ]
    assert [each.reason for each in verdicts if isinstance(each, Refuse)] == [
        "class_full",
        "queue_tokens_full",
    ]
    assert decide(load, GatewayLimits(class_depth_max=2), BATCH, 1) == Admit()
    assert decide(load, GatewayLimits(queue_prompt_tokens_max=100), BATCH, 20) == Admit()


def test_a_request_counts_until_a_look_that_began_after_it_was_queued() -> None:
    admitted, queued, late, failed = Admitted(), request(CHAT), request(CHAT), request(BATCH)

    def counted() -> tuple[int, int, int]:
        load = admitted.added_to(Load())
        return load.accepted_since, load.in_class(CHAT), load.accepted_prompt_tokens

    for each in (queued, late, failed):
        admitted.reserve(each)
        admitted.reserve(each)
    assert counted() == (3, 2, 30)
    admitted.settle(failed.id, queued=False)
    admitted.settle(queued.id, queued=True)
    admitted.begin_look()
    assert counted() == (2, 2, 20), "the look has not ended"
    admitted.settle(late.id, queued=True)
    admitted.settle(late.id, queued=False)
    admitted.end_look()
    assert counted() == (1, 1, 10), "it may have been queued after the look"
    admitted.begin_look()
    admitted.end_look()
    assert counted() == (0, 0, 0)


def test_a_request_that_is_queued_twice_counts_once() -> None:
    """As two attempts with one Idempotency-Key whose clients do not wait."""
    admitted, twice = Admitted(), request(CHAT)
    for _ in range(2):
        admitted.reserve(twice)
        admitted.settle(twice.id, queued=True)
    assert admitted.added_to(Load()).in_class(CHAT) == 1
    admitted.begin_look()
    admitted.end_look()
    assert admitted.added_to(Load()) == Load()


def test_a_request_that_was_seen_to_leave_the_queue_no_longer_counts() -> None:
    admitted, first, second, early = Admitted(), request(CHAT), request(CHAT), request(CHAT)
    for each in (first, second, early):
        admitted.reserve(each)
    for each in (first, second):
        admitted.settle(each.id, queued=True)
    for each in (first, first, early, request(CHAT)):
        admitted.left(each.id)
    admitted.settle(early.id, queued=True)
    assert admitted.added_to(Load()).accepted_prompt_tokens == 10
    admitted.begin_look()
    admitted.end_look()
    assert admitted.added_to(Load()) == Load()


def test_after_a_look_that_was_asked_for_pauses_grow_to_the_usual_one() -> None:
    pauses = LookPauses(5.0)
    assert pauses.next_s() == 5.0
    pauses.asked()
    grown = [pauses.next_s() for _ in range(8)]
    assert grown[0] == 2 * LOOK_SOON_S
    assert all(after == min(2 * before, 5.0) for before, after in pairwise(grown))
    assert grown[-1] == 5.0


def test_pauses_are_never_longer_than_the_usual_one() -> None:
    pauses = LookPauses(LOOK_SOON_S / 2)
    pauses.asked()
    assert pauses.least_s == pauses.next_s() == LOOK_SOON_S / 2


def test_a_full_class_refuses_only_its_own() -> None:
    limits = GatewayLimits(class_depth_max=5)
    load = Load(at_ns=0, waiting=5, waiting_by_class={CHAT: 5})
    verdict = decide(load, limits, CHAT, 10)
    assert isinstance(verdict, Refuse)
    assert verdict.reason == "class_full"
    assert decide(load, limits, BATCH, 10) == Admit()


def test_late_requests_count_in_the_class_that_they_came_in() -> None:
    limits = GatewayLimits(class_depth_max=5)
    seen = view(queued=2)
    late = ClassView(cls=CHAT.missed(), queued=3, groups=())
    load = observe(Load(), replace(seen, classes=(*seen.classes, late)), 0)
    verdict = decide(load, limits, CHAT, 10)
    assert isinstance(verdict, Refuse)
    assert verdict.reason == "class_full"
    assert "5 requests" in verdict.message
    assert decide(load, limits, BATCH, 10) == Admit()


def test_a_late_class_is_its_own_late_class() -> None:
    late = CHAT.missed()
    assert late.missed() == late
    assert Load(waiting_by_class={late: 3}, accepted_by_class={late: 1}).in_class(late) == 4


def test_waiting_prompt_tokens_have_a_limit() -> None:
    limits = GatewayLimits(queue_prompt_tokens_max=1000)
    load = observe(Load(), view(queued=19), 0)
    assert decide(load, limits, CHAT, 50) == Admit()
    verdict = decide(load, limits, CHAT, 51)
    assert isinstance(verdict, Refuse)
    assert verdict.reason == "queue_tokens_full"


@pytest.mark.parametrize(
    ("limits", "requests", "tokens", "words"),
    [
        ({"queue_prompt_tokens_max": 100}, 1, 101, "prompt has 101 tokens; expected at most 100"),
        (
            {"queue_prompt_tokens_max": 100},
            4,
            120,
            "prompts of 4 answers have 120 tokens; expected at most 100",
        ),
        (
            {"queue_depth_max": 5},
            6,
            1,
            "6 answers are asked for; expected at most 5 (limits.queue_depth_max)",
        ),
        (
            {"class_depth_max": 5},
            6,
            1,
            "6 answers are asked for; expected at most 5 (limits.class_depth_max)",
        ),
    ],
)
def test_what_fits_no_queue_is_refused_for_good(
    limits: dict[str, int], requests: int, tokens: int, words: str
) -> None:
    full = observe(Load(), view(queued=1000), 0)
    for load in (Load(), full):
        verdict = decide(load, GatewayLimits(**limits), CHAT, tokens, requests=requests)
        assert isinstance(verdict, Refuse)
        assert (verdict.status, verdict.reason, verdict.retry_after_s) == (400, "request_too_large", None)
        assert words in verdict.message


@pytest.mark.parametrize(("draining", "status"), [(False, None), (True, 503)])
def test_without_a_live_instance_it_refuses_with_503_if_configured_so(
    draining: bool, status: int | None
) -> None:
    load = observe(Load(), view(draining=draining), 0)
    verdict = decide(load, GatewayLimits(refuse_without_instance=True), CHAT, 1)
    assert (verdict.status if isinstance(verdict, Refuse) else None) == status
    assert decide(load, GatewayLimits(), CHAT, 1) == Admit()


def retry_after_s(load: Load, limits: GatewayLimits) -> float:
    verdict = decide(load, limits, CHAT, 1)
    assert isinstance(verdict, Refuse) and verdict.retry_after_s is not None
    return verdict.retry_after_s


def test_retry_after_is_the_excess_over_the_rate_of_finished_requests() -> None:
    limits = GatewayLimits(queue_depth_max=1000)
    load = observe(observe(Load(), view(queued=1000), 0), view(queued=1000, finished=40), 10 * S)
    assert load.finished_per_s == pytest.approx(4.0)
    assert retry_after_s(load, limits) == pytest.approx(20 / 4.0)
    assert retry_after_s(replace(load, waiting=1100), limits) == pytest.approx(120 / 4.0)


def test_several_answers_wait_until_all_of_them_have_room() -> None:
    limits = GatewayLimits(queue_depth_max=1000, class_depth_max=500)
    load = replace(observe(Load(), view(queued=400), 0), finished_per_s=4.0)
    for waiting, asked, retry_s in ((950, 90, 40 / 4.0), (400, 120, 20 / 4.0), (990, 20, 10 / 4.0)):
        verdict = decide(replace(load, waiting=waiting), limits, CHAT, 10, requests=asked)
        assert isinstance(verdict, Refuse)
        assert verdict.retry_after_s == pytest.approx(retry_s)
        assert f"this call asks for {asked} answers" in verdict.message
        assert decide(replace(load, waiting=waiting), limits, CHAT, 10) == Admit()


def test_a_refusal_names_its_limit_and_what_is_asked_of_it() -> None:
    limits = GatewayLimits(queue_depth_max=10, queue_prompt_tokens_max=1000)
    full = decide(Load(at_ns=0, waiting=10), limits, CHAT, 10)
    assert isinstance(full, Refuse)
    assert "below its limit of 10 (limits.queue_depth_max)" in full.message
    load = Load(at_ns=0, waiting=2, waiting_prompt_tokens=900)
    large = decide(load, limits, CHAT, 200)
    assert isinstance(large, Refuse)
    assert large.message == (
        "prompts of 900 tokens wait; this call asks for 200 prompt tokens, expected at most 1000 with those "
        "that wait (limits.queue_prompt_tokens_max)"
    )


def test_retry_after_is_bounded() -> None:
    limits = GatewayLimits(queue_depth_max=1000, retry_after_max_s=60)
    slow = Load(at_ns=0, waiting=1000, finished_per_s=0.001)
    fast = Load(at_ns=0, waiting=1000, finished_per_s=1e6)
    assert retry_after_s(slow, limits) == 60
    assert retry_after_s(fast, limits) == 1
    assert retry_after_s(Load(at_ns=0, waiting=1000), limits) == 5


def test_the_rate_is_smoothed_and_survives_classes_that_vanish() -> None:
    load = observe(observe(Load(), view(finished=0), 0), view(finished=10), 1 * S)
    gone = observe(load, ClusterView(classes=(), instances=(), queues=()), 2 * S)
    assert gone.finished_per_s is not None
    assert 9 < gone.finished_per_s < 10
    back = observe(gone, view(finished=1000), 3 * S)
    assert back.finished_per_s is not None
    assert back.finished_per_s < gone.finished_per_s


@given(late_max_s=st.floats(LATE_MAX_LEAST_S, 60), late_s=st.floats(0, 100))
def test_a_process_without_time_refuses_once_streams_are_in_their_coarsest_pieces(
    late_max_s: float, late_s: float
) -> None:
    refusal = overload(late_s, GatewayLimits(late_max_s=late_max_s, retry_after_max_s=2))
    if refusal is None:
        assert late_s <= late_max_s
        return
    assert late_s > late_max_s
    assert (refusal.status, refusal.reason, refusal.retry_after_s) == (503, "overloaded", 2)
    assert LATENESS_FACTOR * late_s * 1e9 >= INTERVAL_MAX_NS
