"""An agent whose requests the store has lost: it registers them again, or goes on from another's log."""

import pytest

from qlm.agents.core.events import Appended, GenerationEnded, Progress
from qlm.domain.actions import Abort, Append, ReleaseLease, RestoreRequest, Return, Submit
from qlm.domain.ids import RequestId, TokenIds
from qlm.domain.lease import Epoch
from qlm.domain.notices import CancelAsked, LeaseHeld
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult
from qlm.domain.request import Request
from support.agent_bench import Bench, delivery_of
from support.requests import a_request


def lost_by_the_store(bench: Bench) -> RestoreRequest:
    """Let the next append find that the store has lost the request; return the action that restores it."""
    (append,) = bench.take(Append)
    bench.send(Appended(entries=append.entries, results=(AppendResult.UNKNOWN,)))
    (restored,) = bench.take(RestoreRequest)
    return restored


def begun(bench: Bench, request: Request) -> Submit:
    """Start a request that has two tokens."""
    submit = bench.start(request)
    bench.send(Progress(chunks=((submit.call.call_id, (1, 2)),)))
    return submit


def test_requests_are_restored_in_a_store_that_lost_them() -> None:
    bench, request = Bench(), a_request()
    submit = begun(bench, request)
    assert lost_by_the_store(bench).output == (1, 2)
    bench.log[request.id] = [1, 2]
    bench.send(Progress(chunks=((submit.call.call_id, (3,)),)))
    bench.answer(request, bench.granted((1, 2)))
    bench.store_appends()
    assert bench.log[request.id] == [1, 2, 3]


def test_a_request_is_restored_again_until_the_store_answers() -> None:
    bench, request = Bench(), a_request()
    begun(bench, request)
    lost_by_the_store(bench)
    bench.answer(request, None)
    assert not bench.take(RestoreRequest), "it waits before it tries again"
    bench.later(1.0)
    assert len(bench.take(RestoreRequest)) == 1


@pytest.mark.parametrize("log", [(1, 2, 3), (1, 4), (7,)])
def test_a_request_that_another_agent_has_gone_on_with_goes_on_from_its_log(log: TokenIds) -> None:
    bench, request = Bench(), a_request()
    submit = begun(bench, request)
    lost_by_the_store(bench)
    answer = bench.granted(log)
    actions = bench.answer(request, answer)
    assert Abort(call_ids=(submit.call.call_id,)) in actions
    assert [(a.delivery, a.epoch) for a in actions if isinstance(a, Return)] == [
        (delivery_of(request), answer.lease.epoch)
    ]
    bench.later(1.0)
    assert not bench.take(Append)


def test_an_end_that_needs_no_own_tokens_ends_the_log_of_another_agent() -> None:
    bench, request = Bench(), a_request()
    submit = bench.start(request)
    bench.send(CancelAsked(id=request.id, outcome=Outcome.CANCELLED))
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="abort"))
    lost_by_the_store(bench)
    bench.log[request.id] = [1, 2, 3]
    bench.answer(request, bench.granted((1, 2, 3)))
    bench.store_appends()
    assert (bench.log[request.id], bench.outcomes) == ([1, 2, 3], {request.id: Outcome.CANCELLED})


def test_a_lease_that_only_the_store_knows_of_is_released() -> None:
    bench, request = Bench(), a_request("r")
    begun(bench, request)
    bench.send(LeaseHeld(id=request.id, epoch=Epoch(1, 1)))
    bench.send(LeaseHeld(id=RequestId("ended"), epoch=Epoch(1, 2)))
    released = [(each.id, each.epoch) for each in bench.take(ReleaseLease)]
    assert released == [("ended", Epoch(1, 2))], "one that runs here stays"
