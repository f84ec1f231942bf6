"""What engines found in their prefix caches: counted by class and in all, as agents report it."""

import pytest

from qlm.agents.core.events import Appended, GenerationEnded, Progress
from qlm.agents.core.stats.prompt_cache import CLASSES_MAX
from qlm.domain.actions import Append
from qlm.domain.output import AppendResult
from qlm.domain.request import Request
from support.agent_bench import Bench
from support.requests import a_request


def answered(bench: Bench, request: Request, cached_tokens: int | None) -> None:
    call_id = bench.start(request).call.call_id
    bench.send(Progress(chunks=((call_id, (0,)),)))
    bench.send(GenerationEnded(call_id=call_id, finish="stop", cached_tokens=cached_tokens))
    bench.store_appends()


def shares(bench: Bench) -> dict[str, float]:
    return {each.cls.slo: each.cached_tokens / each.prompt_tokens for each in bench.agent.status().prompts}


def test_each_class_has_the_share_of_its_prompts_that_was_cached() -> None:
    bench = Bench(seqs_max=4)
    first, other = a_request("a"), a_request("b", deadline_ms=5000)
    answered(bench, first, first.prompt_tokens)
    answered(bench, other, 0)
    assert shares(bench) == {first.cls.slo: 1.0, other.cls.slo: 0.0}
    assert bench.agent.status().work.cached_tokens == first.prompt_tokens


def test_an_engine_that_does_not_report_it_says_nothing() -> None:
    bench = Bench(seqs_max=4)
    answered(bench, a_request("a"), None)
    assert bench.agent.status().prompts == ()
    assert bench.agent.status().work.cached_tokens == 0


def test_later_prompts_weigh_more() -> None:
    bench = Bench(seqs_max=4)
    for number in range(60):
        request = a_request(f"r{number}")
        answered(bench, request, request.prompt_tokens if number >= 30 else 0)
    assert 0.5 < shares(bench)[a_request("x").cls.slo] < 0.6


def test_a_resumed_prompt_that_finds_its_own_blocks_says_nothing_about_its_class() -> None:
    bench = Bench(seqs_max=1)
    request = a_request("resumed", max_tokens=100)
    call_id = bench.deliver(request, output=(1, 2, 3)).call.call_id
    bench.send(GenerationEnded(call_id=call_id, finish="stop", cached_tokens=request.prompt_tokens))
    assert bench.agent.status().prompts == ()
    assert bench.agent.status().work.cached_tokens == request.prompt_tokens


@pytest.mark.parametrize(("cached_tokens", "logged"), [(3, 3), (0, 0), (99, 4), (None, None)])
def test_the_end_of_an_answer_says_how_much_of_its_prompt_was_cached(
    cached_tokens: int | None, logged: int | None
) -> None:
    bench = Bench(seqs_max=4)
    call_id = bench.start(a_request("a")).call.call_id
    bench.send(Progress(chunks=((call_id, (0,)),)))
    (first,) = bench.take(Append)
    bench.send(Appended(entries=first.entries, results=(AppendResult.TAKEN,)))
    bench.send(GenerationEnded(call_id=call_id, finish="stop", cached_tokens=cached_tokens))
    (last,) = bench.take(Append)
    assert [entry.extensions.cached_tokens for entry in (*first.entries, *last.entries)] == [None, logged]
    assert last.entries[0].outcome is not None


def test_of_an_answer_that_began_elsewhere_it_is_not_known() -> None:
    bench = Bench(seqs_max=1)
    call_id = bench.deliver(a_request("a", max_tokens=100), output=(1, 2, 3)).call.call_id
    bench.send(GenerationEnded(call_id=call_id, finish="stop", cached_tokens=4))
    assert [entry.extensions.cached_tokens for (each,) in [bench.take(Append)] for entry in each.entries] == [
        None
    ]


def test_a_bounded_number_of_classes_is_reported() -> None:
    bench = Bench(seqs_max=4)
    for number in range(CLASSES_MAX + 1):
        answered(bench, a_request(f"r{number}", deadline_ms=1000.0 * (number + 1)), 1)
    assert len(bench.agent.status().prompts) == CLASSES_MAX
