"""What engines found in their prefix caches: counted by class and in all, as agents report it."""

from qlm.agents.core.events import GenerationEnded, Progress
from qlm.agents.core.stats.prompt_cache import CLASSES_MAX
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


def test_a_bounded_number_of_classes_is_reported() -> None:
    bench = Bench(seqs_max=4)
    for number in range(CLASSES_MAX + 1):
        answered(bench, a_request(f"r{number}", deadline_ms=1000.0 * (number + 1)), 1)
    assert len(bench.agent.status().prompts) == CLASSES_MAX
