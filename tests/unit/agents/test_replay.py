"""Answers that cannot be resumed: generated again from the prompt, up to where the log ends."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.agents.core.events import GenerationEnded, Progress
from qlm.domain.actions import Abort, Append, Return, Submit
from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.formats.token_logprobs import LogprobLog, TokenLogprob, decoded, pack
from qlm.domain.ids import TokenIds
from qlm.domain.outcome import Outcome
from qlm.domain.request import Request
from support.agent_bench import Bench
from support.requests import a_request

ANSWER = (11, 12, 13, 14, 15, 16)


def a_pinned_request(id: str = "r", **sampling: Any) -> Request:
    request = a_request(id, max_tokens=len(ANSWER), frequency_penalty=0.5)
    return replace(request, sampling=replace(request.sampling, **sampling))


def generate(bench: Bench, submit: Submit, *chunks: TokenIds) -> None:
    for chunk in chunks:
        bench.send(Progress(chunks=((submit.call.call_id, chunk),)))


def replayed(bench: Bench, request: Request, logged: int) -> Submit:
    """Return the submission of a request whose first agent is gone."""
    return bench.start(request, output=ANSWER[:logged])


def test_a_lost_engine_returns_a_pinned_request_with_its_tokens_logged() -> None:
    bench = Bench()
    request = a_pinned_request()
    submit = bench.start(request)
    generate(bench, submit, ANSWER[:2])
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="lost", detail="gone"))
    bench.store_appends()
    assert [back.id for back in bench.take(Return)] == [request.id]
    assert (bench.log[request.id], bench.outcomes) == ([11, 12], {})


def test_it_begins_with_the_prompt_alone_and_all_its_tokens() -> None:
    request = a_pinned_request()
    call = replayed(Bench(), request, 4).call
    assert call.prompt_ids == request.prompt_ids
    assert call.sampling.max_tokens == len(ANSWER)


@given(
    logged=st.integers(1, len(ANSWER) - 1),
    cuts=st.lists(st.integers(0, len(ANSWER)), max_size=3).map(sorted),
)
def test_only_what_is_beyond_the_log_is_added(logged: int, cuts: list[int]) -> None:
    bench = Bench()
    request = a_pinned_request()
    submit = replayed(bench, request, logged)
    ends = [0, *cuts, len(ANSWER)]
    generate(bench, submit, *(ANSWER[a:b] for a, b in pairwise(ends)))
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="length"))
    bench.store_appends()
    assert bench.log[request.id] == list(ANSWER)
    assert bench.outcomes == {request.id: Outcome.LENGTH}
    assert not bench.agent.state.requests.replays


@pytest.mark.parametrize("chunks", [((11, 99),), ((11,), (99, 13)), ((11, 12, 99, 14),)])
def test_it_ends_when_other_tokens_come(chunks: tuple[TokenIds, ...]) -> None:
    bench = Bench()
    request = a_pinned_request()
    submit = replayed(bench, request, 3)
    generate(bench, submit, *chunks)
    assert bench.take(Abort) == [Abort(call_ids=(submit.call.call_id,), cut=True)]
    generate(bench, submit, (14, 15))
    bench.store_appends()
    assert (bench.log[request.id], bench.outcomes) == ([11, 12, 13], {request.id: Outcome.ENGINE_LOST})


def test_it_ends_when_the_engine_stops_before_the_end_of_the_log() -> None:
    bench = Bench()
    request = a_pinned_request()
    submit = replayed(bench, request, 3)
    generate(bench, submit, (11, 12))
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="stop"))
    bench.store_appends()
    assert bench.outcomes == {request.id: Outcome.ENGINE_LOST}
    assert not bench.agent.state.stats.operations.ended, "it is no answer to learn from"


def test_an_engine_may_stop_exactly_where_the_log_ends() -> None:
    bench = Bench()
    request = a_pinned_request()
    submit = replayed(bench, request, 3)
    generate(bench, submit, ANSWER[:3])
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="stop"))
    bench.store_appends()
    assert (bench.log[request.id], bench.outcomes) == ([11, 12, 13], {request.id: Outcome.STOP})


def test_a_replay_that_is_lost_is_returned_again() -> None:
    bench = Bench()
    request = a_pinned_request()
    submit = replayed(bench, request, 3)
    generate(bench, submit, (11,))
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="lost", detail="gone"))
    bench.store_appends()
    assert [back.id for back in bench.take(Return)] == [request.id]
    assert not bench.agent.state.requests.replays


def test_a_replay_is_progress_of_the_engine() -> None:
    bench = Bench()
    submit = replayed(bench, a_request(max_tokens=100, frequency_penalty=0.5), 6)
    for token in ANSWER[:5]:
        bench.later(7.0)
        generate(bench, submit, (token,))
    bench.later(0.1)
    assert not bench.agent.state.stats.progress.silent_s
    assert not bench.agent.state.stats.progress.restarting


def test_log_probabilities_go_on_behind_the_log() -> None:
    bench = Bench()
    request = replace(a_pinned_request(), extensions=RequestExtensions(logprobs=1))
    submit = replayed(bench, request, 3)
    packed, call_id = [pack([TokenLogprob(-float(n))], 1) for n in range(len(ANSWER))], submit.call.call_id
    log = LogprobLog(1, start=3)
    for begin in (0, 2, 4):
        scores = ((call_id, b"".join(packed[begin : begin + 2])),)
        bench.send(Progress(chunks=((call_id, ANSWER[begin : begin + 2]),), logprobs=scores))
        for append in (action for action in bench.actions if isinstance(action, Append)):
            for piece in append.entries[0].extensions.logprobs_at:
                log.put(*decoded(piece))
        bench.store_appends()
    assert [token.sampled for token in log.tokens(3, log.end)] == [-3.0, -4.0, -5.0]


def test_tokens_that_are_drawn_get_a_seed_that_another_agent_gets_too() -> None:
    drawn = a_pinned_request(temperature=1.0)
    first, again = Bench().start(drawn).call, replayed(Bench(), drawn, 2).call
    assert first.sampling.seed is not None
    assert first.sampling.seed == again.sampling.seed

    def seed_of(request: Request) -> int | None:
        return Bench().start(request).call.sampling.seed

    assert seed_of(a_pinned_request("other", temperature=1.0)) not in (None, first.sampling.seed)
    assert seed_of(a_pinned_request(temperature=1.0, seed=5)) == 5
    assert seed_of(a_pinned_request()) is None
    assert seed_of(a_pinned_request(temperature=1.0, frequency_penalty=0.0)) is None


def test_on_the_cpu_no_seed_is_set() -> None:
    bench = Bench(accelerator="CPU")
    assert bench.start(a_pinned_request(temperature=1.0)).call.sampling.seed is None
