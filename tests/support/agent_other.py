"""Another agent in the same world, in brief: it leases, ends or returns what it finds."""

from typing import TYPE_CHECKING

from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import InstanceId, ModelId, QueueName, SessionId
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import Granted
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.request import Request
from qlm.store.core import instances, leases, output_log, requests
from support.agent_engines import answer_to, finish_of

if TYPE_CHECKING:
    from support.agent_world import World

M, N, FOREIGN = ModelId("m"), ModelId("n"), ModelId("x")
HOLDER = Holder(InstanceId("i"), SessionId("s"))
OTHER = Holder(InstanceId("other"), SessionId("o"))
HOLD = QueueName("qlm.hold.i")


def other_pulls(world: "World", queue: QueueName) -> None:
    """The other agent takes the first message of a class queue and does with it what an agent does."""
    other = InstanceStatus(holder=OTHER, accelerator="A10", models=(M, N, FOREIGN))
    instances.heartbeat(world.state, other, 1e6, world.now_ns)
    request = world.queues[queue].pop(0)
    answer, effects = leases.lease(world.state, request.metadata(), OTHER, None, world.now_ns)
    world.announce(effects)
    if isinstance(answer, Granted):
        world.others.append(request)
    elif getattr(answer, "holder", None) == HOLDER:
        world.queues[HOLD].append(request)


def other_lets_go(world: "World", request: Request, *, finished: bool) -> None:
    """The other agent ends a request, or gives it back."""
    world.others.remove(request)
    record = requests.record(world.state, request.id)
    if record is None or record.lease is None or record.lease.holder != OTHER:
        if record is None or record.outcome is None:
            world.queues[request.cls.queue].append(request)
        return
    epoch = record.lease.epoch
    if not finished:
        world.announce(leases.release(world.state, request.id, epoch, "returned", world.now_ns)[1])
        world.queues[request.cls.queue].append(request)
        return
    entry = LogEntry(
        id=request.id,
        epoch=epoch,
        offset=record.output_tokens,
        token_ids=answer_to(request)[record.output_tokens :],
        outcome=Outcome(finish_of(request)),
    )
    world.announce(output_log.append(world.state, [entry], world.now_ns)[1])
