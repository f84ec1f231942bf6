"""A request under which engines failed too often is taken for the cause: its output log has their number."""

from dataclasses import replace

import pytest

from qlm.agents.core.events import Appended, GenerationEnded, Progress, Pulled
from qlm.agents.core.lifecycle import LOSSES_MAX
from qlm.domain.actions import AcquireLease, Append, PulledMessage, Return, Submit
from qlm.domain.ids import GroupId
from qlm.domain.lease import Epoch
from qlm.domain.notices import DrainAsked
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.request import Request
from support.agent_bench import Bench, delivery_of, group_of
from support.requests import a_request


def started(bench: Bench, request: Request, *, losses: int = 0, n: int = 1) -> Submit:
    """Lease a request for the n-th time, after so many engines were lost; return its submission."""
    bench.queue(group_of(request))
    message = PulledMessage(delivery=delivery_of(request), request=request)
    bench.send(Pulled(group=GroupId("g"), limit=1, messages=(message,)))
    bench.take(AcquireLease)
    bench.log[request.id] = []
    granted = bench.granted()
    lease = replace(granted.lease, epoch=Epoch(1, n))
    bench.answer(request, replace(granted, lease=lease, engine_losses=losses))
    (submit,) = bench.take(Submit)
    return submit


def lose(bench: Bench, submit: Submit) -> None:
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="lost", detail="killed by signal 9"))
    bench.later(0.05)


def entries(bench: Bench) -> list[LogEntry]:
    return [entry for append in bench.actions if isinstance(append, Append) for entry in append.entries]


def test_a_request_that_was_often_handed_back_is_retried_after_its_first_engine_failure() -> None:
    """Drains and swaps give leases back, too: the number of leases says nothing about the engines."""
    bench = Bench()
    request = a_request("r", arrival_ns=bench.now_ns)
    lose(bench, started(bench, request, n=5 * LOSSES_MAX))
    bench.store_appends()
    assert [each.id for each in bench.take(Return)] == [request.id] and not bench.outcomes


def test_a_loss_is_counted_in_the_log_before_the_request_returns() -> None:
    bench = Bench()
    submit = started(bench, a_request("r", arrival_ns=bench.now_ns), losses=2)
    bench.send(Progress(chunks=((submit.call.call_id, (1, 2)),)))
    bench.store_appends()
    lose(bench, submit)
    assert not bench.take(Return), "the log comes first"
    assert [entry.extensions.engine_losses for entry in entries(bench)] == [3]
    bench.store_appends()
    assert bench.take(Return)


@pytest.mark.parametrize("finish", ["lost", "garbled", "abort"])
def test_a_request_under_which_each_engine_fails_ends(finish: str) -> None:
    """However few leases its present row had: another store may have forgotten the former ones."""
    request = a_request("poison")
    for losses in range(1, LOSSES_MAX + 1):
        bench = Bench()
        submit = started(
            bench, replace(request, arrival_ns=bench.now_ns), losses=losses - 1, n=1 + losses % 3
        )
        bench.send(GenerationEnded(call_id=submit.call.call_id, finish=finish, detail="killed by signal 9"))
        bench.later(0.05)
        (entry,) = entries(bench)
        assert entry.extensions.engine_losses == losses
        bench.store_appends()
        assert bench.outcomes == ({request.id: Outcome.FAILED} if losses == LOSSES_MAX else {})
        assert bool(bench.take(Return)) == (losses < LOSSES_MAX)
    assert entry.detail.startswith(f"its engine was lost {LOSSES_MAX} times, and now: ")


def test_a_write_that_failed_is_repeated_with_the_loss() -> None:
    bench = Bench()
    lose(bench, started(bench, a_request("r", arrival_ns=bench.now_ns)))
    (append,) = bench.take(Append)
    bench.send(Appended(entries=append.entries, results=None))
    bench.later(5.0)
    assert [entry.extensions.engine_losses for entry in entries(bench)] == [1]


@pytest.mark.parametrize("lost", [0, 3])
def test_a_store_that_lost_the_count_gets_it_again(lost: int) -> None:
    bench = Bench()
    request = a_request("r", arrival_ns=bench.now_ns)
    running = started(bench, request, losses=3)
    bench.agent.state.requests.all[request.id].claim.epoch = None
    bench.answer(request, replace(bench.granted(), engine_losses=3 - lost))
    bench.send(DrainAsked())
    bench.send(GenerationEnded(call_id=running.call.call_id, finish="abort"))
    bench.later(2.0)
    assert [entry.extensions.engine_losses for entry in entries(bench)] == ([3] if lost else [])
