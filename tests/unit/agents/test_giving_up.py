"""Readers that were given up leave the places of a full engine to those in time."""

from dataclasses import replace

import pytest

from qlm.agents.core.events import GenerationEnded, Progress
from qlm.agents.core.scheduling.giving_up import is_given_up
from qlm.agents.core.state import AgentSettings
from qlm.domain.actions import Abort, Demote, Pull, Submit
from qlm.domain.ids import GroupId
from qlm.domain.request import Request
from qlm.domain.slo import DeadlineSlo, ReadingSlo, TokenSlo
from support.agent_bench import Bench, M, S, group_of
from support.requests import a_request

SLOTS = 4


def reader(id: str, bench: Bench) -> Request:
    """Return a request of a reader who expects a token after a second, and then one per second."""
    request = a_request(id, model=M, max_tokens=100, deadline_ms=1000, arrival_ns=bench.now_ns)
    return replace(request, slo=ReadingSlo(ttft_ms=1000, tokens_per_s=1.0))


def full(monkeypatch: pytest.MonkeyPatch, *, demotes: bool = True) -> tuple[Bench, list[Submit]]:
    """Return an agent whose engine has as many readers as it takes: twice the batch slots."""
    monkeypatch.setattr("qlm.agents.batching.pool.REQUESTS_MAX", 2 * SLOTS)
    settings = AgentSettings(batching="unified", demotes=demotes)
    bench = Bench(seqs_max=SLOTS, kv_tokens=160_000, settings=settings)
    calls = [bench.start(reader(f"r{n}", bench), name=f"r{n}") for n in range(2 * SLOTS)]
    bench.send(Progress(chunks=((calls[0].call.call_id, (1, 2, 3)),)))
    bench.store_appends()
    bench.take(Pull)
    return bench, calls


def wait_with(bench: Bench, seconds: float) -> list[str]:
    """Let time pass, then have a reader come; return the calls that are aborted for it."""
    bench.later(seconds)
    bench.queue(group_of(reader("new", bench), name="new"))
    return [call for abort in bench.take(Abort) for call in abort.call_ids]


def test_a_reader_without_output_goes_back_to_the_queue_as_a_late_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, calls = full(monkeypatch)
    assert wait_with(bench, 12) == [calls[1].call.call_id], "the first one with the least output"
    bench.send(GenerationEnded(call_id=calls[1].call.call_id, finish="abort"))
    bench.store_appends()
    (demoted,) = bench.take(Demote)
    assert (demoted.request.id, demoted.request.cls.late, demoted.evicted) == ("r1", True, True)
    assert [pull.group for pull in bench.take(Pull)] == [GroupId("new")]


@pytest.mark.parametrize("slo", [DeadlineSlo(deadline_ms=1000), TokenSlo(ttft_ms=1000, tpot_ms=None)])
def test_deadlines_and_first_tokens_are_given_up_likewise(slo: DeadlineSlo | TokenSlo) -> None:
    bench = Bench(seqs_max=SLOTS)
    bench.start(replace(reader("r", bench), slo=slo))
    (tracked,) = bench.agent.state.requests.running.values()
    assert not is_given_up(tracked, bench.now_ns + 11 * S)
    assert is_given_up(tracked, bench.now_ns + 11 * S + 1)


def test_who_has_waited_for_less_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = full(monkeypatch)
    assert wait_with(bench, 10.5) == []


def test_all_keep_their_places_where_late_requests_are_not_demoted(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = full(monkeypatch, demotes=False)
    assert wait_with(bench, 12) == []


def test_output_puts_off_the_time_at_which_a_reader_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, calls = full(monkeypatch)
    bench.send(Progress(chunks=tuple((call.call.call_id, tuple(range(9))) for call in calls)))
    bench.store_appends()
    assert wait_with(bench, 12) == []


def test_a_full_engine_is_searched_once_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, calls = full(monkeypatch)
    assert wait_with(bench, 10.9) == []
    assert wait_with(bench, 0.5) == [], "searched half a second ago"
    assert bench.later(0.5) != []
    assert [abort.call_ids for abort in bench.take(Abort)] == [(calls[1].call.call_id,)]
