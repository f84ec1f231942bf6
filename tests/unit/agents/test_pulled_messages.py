"""Messages that an agent pulls: which it forwards, keeps or drops, by their leases."""

from dataclasses import replace

from qlm.agents.core.events import (
    GenerationEnded,
    Pulled,
)
from qlm.domain.actions import (
    Ack,
    AcquireLease,
    ForwardMessage,
    Pull,
    PulledMessage,
    RenewDelivery,
    Return,
)
from qlm.domain.ids import GroupId, InstanceId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import IdTaken, LeaseHeldElsewhere, Over
from qlm.domain.outcome import Outcome
from support.agent_bench import Bench, delivery_of, group_of
from support.requests import a_request


def test_a_message_whose_lease_is_held_elsewhere_is_forwarded() -> None:
    bench = Bench()
    request = a_request()
    bench.send(
        Pulled(group=None, limit=0, messages=(PulledMessage(delivery=delivery_of(request), request=request),))
    )
    other = Holder(InstanceId("other"), SessionId("x"))
    actions = bench.answer(request, LeaseHeldElsewhere(holder=other))
    assert ForwardMessage(delivery=delivery_of(request), holder=other) in actions
    assert not bench.agent.state.requests.all


def test_the_message_of_an_ended_request_is_dropped() -> None:
    bench = Bench()
    request = a_request()
    bench.send(
        Pulled(group=None, limit=0, messages=(PulledMessage(delivery=delivery_of(request), request=request),))
    )
    assert bench.answer(request, Over(outcome=Outcome.CANCELLED)) == [Ack(delivery=delivery_of(request))]


def test_the_message_of_a_request_whose_id_is_taken_is_dropped() -> None:
    bench = Bench()
    request = a_request()
    bench.send(
        Pulled(group=None, limit=0, messages=(PulledMessage(delivery=delivery_of(request), request=request),))
    )
    assert bench.answer(request, IdTaken()) == [Ack(delivery=delivery_of(request))]
    assert not bench.agent.state.requests.all


def test_another_body_under_the_id_of_a_leased_request_is_dropped_and_does_not_replace_it() -> None:
    bench = Bench()
    request = a_request()
    bench.start(request)
    other = PulledMessage(delivery=delivery_of(request, 2), request=replace(request, fingerprint="other"))
    assert bench.send(Pulled(group=None, limit=0, messages=(other,))) == [Ack(delivery=other.delivery)]
    (tracked,) = bench.agent.state.requests.all.values()
    assert (tracked.request, tracked.claim.delivery) == (request, delivery_of(request))


def test_another_body_under_the_id_of_a_request_waits_until_the_store_has_decided() -> None:
    bench = Bench()
    request = a_request()
    bench.send(
        Pulled(group=None, limit=0, messages=(PulledMessage(delivery=delivery_of(request), request=request),))
    )
    other = PulledMessage(delivery=delivery_of(request, 2), request=replace(request, fingerprint="other"))
    (returned,) = bench.send(Pulled(group=None, limit=0, messages=(other,)))
    assert isinstance(returned, Return)
    assert (returned.delivery, returned.epoch) == (other.delivery, None)


def test_our_own_request_redelivered_to_us_keeps_running_with_the_new_message() -> None:
    bench = Bench()
    request = a_request()
    submit = bench.start(request)
    again = delivery_of(request, 1)
    actions = bench.send(
        Pulled(group=None, limit=0, messages=(PulledMessage(delivery=again, request=request),))
    )
    assert Ack(delivery=delivery_of(request)) in actions
    assert not bench.take(AcquireLease)
    bench.take(Ack)
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="stop"))
    bench.store_appends()
    assert bench.take(Ack) == [Ack(delivery=again)]


def test_a_demoted_request_keeps_a_message_when_that_of_its_former_class_comes_again() -> None:
    """The delivery of the demoted one may be lost, and its message moved to where it comes from."""
    bench = Bench()
    former = a_request(deadline_ms=60_000, arrival_ns=bench.now_ns)
    late = replace(former, cls=former.cls.missed())
    bench.start(late)
    again = PulledMessage(delivery=delivery_of(former, 1), request=former)
    actions = bench.send(Pulled(group=None, limit=0, messages=(again,)))
    steps = [action for action in actions if isinstance(action, RenewDelivery | Ack)]
    assert steps == [
        RenewDelivery(delivery=delivery_of(late), other=again.delivery),
        Ack(delivery=again.delivery),
    ]


def test_messages_leased_elsewhere_do_not_reduce_the_count_of_their_group() -> None:
    bench = Bench(seqs_max=1)
    dead, alive = a_request("dead"), a_request("alive")
    bench.queue(group_of(alive))
    bench.take(Pull)
    message = PulledMessage(delivery=delivery_of(dead), request=dead)
    bench.send(Pulled(group=GroupId("g"), limit=1, messages=(message,)))
    bench.answer(dead, Over(outcome=Outcome.CANCELLED))
    assert len(bench.take(Pull)) == 1
