"""Leases of requests that write nothing are checked: the store may have given them away, or lost them."""

from collections.abc import Callable

import pytest

from qlm.agents.core.events import Appended, Progress
from qlm.agents.core.request import Phase
from qlm.agents.core.state import AgentSettings
from qlm.domain.actions import Ack, Append, ReportParked, RestoreRequest, Return
from qlm.domain.ids import RequestId
from qlm.domain.output import AppendResult, LogEntry
from support.agent_bench import Bench
from support.requests import a_request

CHECK_S = AgentSettings().lease_check_s


def parked() -> Bench:
    """Return an agent with a request of three tokens that waits while an urgent one runs."""
    bench = Bench(seqs_max=1)
    _, urgent = bench.preempt("r")
    assert [each.id for each in bench.take(ReportParked)] == ["r"]
    bench.deliver(urgent, name="u")
    return bench


def without_a_token() -> Bench:
    """Return an agent with a request that the engine has not begun to answer."""
    bench = Bench(seqs_max=1)
    bench.start(a_request("r"))
    return bench


def written(bench: Bench, result: AppendResult, seconds: float) -> list[LogEntry]:
    """Let time pass, and answer what is written for the request with this result; return the entries."""
    found = list[LogEntry]()
    for _ in range(round(seconds / 0.5)):
        bench.later(0.5)
        for append in bench.take(Append):
            found += [entry for entry in append.entries if entry.id == "r"]
            results = tuple(result if each.id == "r" else AppendResult.TAKEN for each in append.entries)
            bench.send(Appended(entries=append.entries, results=results))
    return found


@pytest.mark.parametrize(("begin", "tokens"), [(parked, 3), (without_a_token, 0)])
@pytest.mark.parametrize(
    ("result", "reaction"),
    [(AppendResult.STALE, Return), (AppendResult.UNKNOWN, RestoreRequest), (AppendResult.ENDED, Ack)],
)
def test_a_lease_that_is_gone_is_noticed(
    begin: Callable[[], Bench], tokens: int, result: AppendResult, reaction: type
) -> None:
    bench = begin()
    entries = written(bench, result, 2 * CHECK_S + 1)
    assert {(each.offset, each.token_ids, each.outcome) for each in entries} == {(tokens, (), None)}
    assert len(bench.take(reaction)) == 1
    if result is not AppendResult.UNKNOWN:
        assert "r" not in bench.agent.state.requests.all


@pytest.mark.parametrize(("begin", "phase"), [(parked, Phase.READY), (without_a_token, Phase.RUNNING)])
def test_one_that_holds_costs_a_write_per_check_and_changes_nothing(
    begin: Callable[[], Bench], phase: Phase
) -> None:
    bench = begin()
    assert len(written(bench, AppendResult.TAKEN, 10 * CHECK_S)) in (9, 10)
    assert bench.agent.state.requests.all[RequestId("r")].phase is phase


def test_a_request_that_writes_tokens_needs_no_check() -> None:
    bench = Bench(seqs_max=1)
    running = bench.start(a_request("r", max_tokens=1000))
    for token in range(1, 40):
        bench.send(Progress(chunks=((running.call.call_id, (token,)),)))
        assert all(each.token_ids for each in written(bench, AppendResult.TAKEN, 1.0))
