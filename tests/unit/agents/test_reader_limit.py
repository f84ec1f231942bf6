"""The bound of an agent's batch by its readers."""

from dataclasses import replace

import pytest

from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import GenerationEnded, Pulled
from qlm.agents.core.state import AgentSettings
from qlm.agents.core.stats.readers import PRIOR_TOKENS, ReaderBounds
from qlm.domain.actions import Abort, AcquireLease, Pull, PulledMessage, Submit
from qlm.domain.group import request_class
from qlm.domain.ids import GroupId, ModelId, RequestId
from qlm.domain.request import Request
from qlm.domain.slo import ReadingSlo
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.readers import reader_bound
from qlm.rct_estimator.workload import Workload
from support.agent_bench import Bench, delivery_of, group_of
from support.estimating import SHIPPED
from support.requests import a_request

M = ModelId("m")
SLOTS = 64
PROFILE = replace(
    SHIPPED,
    # 10 ms, and 1 ms for each token: a batch of about 37 supplies 20 tokens per second.
    iteration=IterationTime(host_ms=0.0, linear_ms=((1.0, 11.0), (2001.0, 2011.0)), kv_ms=0.0),
    seqs_max=SLOTS,
    kv_tokens=10_000_000,
)


def learned(prompt_tokens: int, output_tokens: int, answers: int = 300) -> ReaderBounds:
    bounds = ReaderBounds({M: PROFILE})
    for _ in range(answers):
        bounds.ended(M, prompt_tokens, output_tokens)
    return bounds


def test_the_limit_is_the_bound_for_the_requests_that_were_seen() -> None:
    work = Workload(prompt_tokens=1.0, output=Normal(200.0, 0.0))
    limit = learned(1, 200, 2000).limit(M, {20.0: 1}, SLOTS)
    assert limit is not None
    assert limit == pytest.approx(reader_bound(PROFILE, work, 20.0), abs=1)


def test_longer_prompts_leave_room_for_fewer_readers() -> None:
    short, usual, long = (learned(prompt, 200).limit(M, {20.0: 1}, SLOTS) for prompt in (1, 200, 1000))
    assert short is not None and usual is not None and long is not None
    assert short >= usual >= long
    assert short > long


def test_before_the_first_answer_usual_lengths_are_assumed() -> None:
    work = Workload(prompt_tokens=PRIOR_TOKENS, output=Normal(PRIOR_TOKENS, PRIOR_TOKENS**2))
    assert ReaderBounds({M: PROFILE}).limit(M, {20.0: 1}, SLOTS) == reader_bound(PROFILE, work, 20.0)


def test_slow_readers_bound_nothing_and_a_model_without_profile_neither() -> None:
    assert learned(1, 200).limit(M, {1.0: 5}, SLOTS) is None
    assert learned(1, 200).limit(ModelId("other"), {20.0: 5}, SLOTS) is None
    assert learned(1, 200).limit(M, {}, SLOTS) is None


def test_a_pace_that_no_batch_keeps_does_not_bound_the_others() -> None:
    bounds = learned(1, 200)
    assert bounds.limit(M, {1000.0: 9, 20.0: 1}, SLOTS) == bounds.limit(M, {20.0: 1}, SLOTS)
    assert bounds.limit(M, {1000.0: 9}, SLOTS) is None


def test_the_batch_keeps_up_with_most_readers() -> None:
    bounds = learned(1, 200)
    fast, slow = (bounds.limit(M, {pace: 1}, SLOTS) for pace in (40.0, 20.0))
    assert fast is not None
    assert slow is not None
    assert fast < slow / 2
    # A few fast readers would keep most places empty; a few slow ones take part in a batch for the fast.
    assert bounds.limit(M, {40.0: 1, 20.0: 9}, SLOTS) == slow
    assert bounds.limit(M, {40.0: 9, 20.0: 1}, SLOTS) == fast


def reader(name: str, bench: Bench, tokens_per_s: float = 20.0) -> Request:
    slo = ReadingSlo(ttft_ms=5000.0, tokens_per_s=tokens_per_s)
    request = a_request(name, arrival_ns=bench.now_ns, max_tokens=1000)
    return replace(request, slo=slo, cls=request_class(M, slo, 0))


def an_agent(*, bounds: bool = True) -> Bench:
    settings = AgentSettings(bounds_readers=bounds, pull_max=SLOTS)
    costs = OperationCosts(profiles={M: PROFILE})
    return Bench(seqs_max=SLOTS, kv_tokens=1_000_000, settings=settings, costs=costs)


def started(bench: Bench, first: Request, name: str) -> int:
    """Offer many requests like one; return how many the agent pulls in all, all of which it starts."""
    count = 0
    bench.queue(group_of(first, name=name, count=10 * SLOTS))
    while pulls := bench.take(Pull):
        (pull,) = pulls
        requests = [
            replace(first, id=RequestId(f"{name}-{count + each}"), arrival_ns=bench.now_ns)
            for each in range(pull.limit)
        ]
        messages = tuple(PulledMessage(delivery=delivery_of(each), request=each) for each in requests)
        bench.send(Pulled(group=GroupId(name), limit=pull.limit, messages=messages))
        assert len(bench.take(AcquireLease)) == pull.limit
        for each in requests:
            bench.answer(each, bench.granted())
        count += len(bench.take(Submit))
    return count


def test_an_agent_pulls_readers_up_to_the_bound() -> None:
    bench = an_agent()
    expected = ReaderBounds({M: PROFILE}).limit(M, {20.0: 1}, SLOTS)
    assert expected is not None
    assert expected < SLOTS / 2
    assert started(bench, reader("r", bench), "g") == expected


def test_beside_readers_no_other_request_starts_beyond_the_bound() -> None:
    bench = an_agent()
    bound = started(bench, reader("r", bench), "g")
    assert bound
    assert started(bench, a_request("b", max_tokens=1000), "batch") == 0


def test_batch_work_makes_way_for_a_reader_down_to_the_bound_when_it_cannot_wait() -> None:
    bench = an_agent()
    count = started(bench, a_request("b", max_tokens=1000), "batch")
    assert count >= SLOTS, "batch work alone fills the engine"
    bench.at_pace(token_s=1.0, service_s=1000.0)
    bench.queue(group_of(reader("r", bench), name="g"))
    bench.later(4.9)
    gone = len({call_id for abort in bench.take(Abort) for call_id in abort.call_ids})
    bound = ReaderBounds({M: PROFILE}).limit(M, {20.0: 1}, SLOTS)
    assert bound is not None
    assert gone == count - bound + 1


def test_without_the_rule_readers_fill_the_engine() -> None:
    bench = an_agent(bounds=False)
    assert started(bench, reader("r", bench), "g") == SLOTS


def test_slow_readers_do_not_wait() -> None:
    bench = an_agent()
    assert started(bench, reader("r", bench, 1.0), "g") == SLOTS


def test_a_batch_bound_by_the_kv_cache_counts_as_that_for_slow_readers() -> None:
    # 40 requests of 250 tokens fill the KV cache: 40 x 10 readers against about 17 x 9 and 37 x 10.
    small = replace(PROFILE, kv_tokens=40 * 250)
    bounds = ReaderBounds({M: small})
    for _ in range(2000):
        bounds.ended(M, 1, 400)
    fast = bounds.limit(M, {20.0: 1}, 10 * SLOTS)
    assert fast is not None
    assert bounds.limit(M, {20.0: 99, 1.0: 1}, 100 * SLOTS) == fast


def test_a_reader_that_becomes_late_while_it_runs_bounds_the_batch_until_it_ends() -> None:
    bench = an_agent()
    first = reader("r", bench)
    call = bench.start(first).call
    late = replace(first, cls=first.cls.missed())
    bench.queue(group_of(late, name="late"))
    message = PulledMessage(delivery=delivery_of(late, 1), request=late)
    bench.send(Pulled(group=GroupId("late"), limit=1, messages=(message,)))
    kv = bench.agent.state.requests.kv
    assert kv.paces == {20.0: 1}
    bench.send(GenerationEnded(call_id=call.call_id, finish="stop"))
    bench.store_appends()
    assert not kv.paces


def test_nothing_is_preempted_for_a_reader_that_still_could_not_start() -> None:
    bench = an_agent()
    urgent = replace(a_request("u", deadline_ms=1000, max_tokens=1000), arrival_ns=bench.now_ns)
    for each in range(50):
        bench.start(replace(urgent, id=RequestId(f"u{each}")), name=f"u{each}")
    for each in range(14):
        bench.start(a_request(f"b{each}", max_tokens=1000), name=f"b{each}")
    bench.at_pace(token_s=1.0, service_s=1000.0)
    bench.queue(group_of(reader("r", bench), name="g"))
    bench.later(4.9)
    assert not bench.take(Abort)
