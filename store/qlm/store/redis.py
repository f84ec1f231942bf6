"""The shared state in Redis.

Every operation is one Lua script, found by its digest, which changes the state and publishes the
announcements in one atomic step, so the two cannot drift apart. Keys, after a configurable prefix:

* `incarnation`: set once from a clock; an emptied Redis gets a larger one with the next operation.
* `request:<id>` (hash: card, state, lease, outcome, times), `log:<id>` (string: the output log, four bytes
  per token), `events:<id>` (list), `watchers:<id>` (set).
* `indexed`: when the global queue was last read into an empty Redis; missing until then.
* `requests` and `held` (all requests, and the leased ones), `waiting:<class>`, `drops`: sorted sets whose
  members are `<time as 20 digits>:<id>`, all of score 0, so that they sort exactly by time, then id.
* `ended` (list of the same members, oldest ended first).
* `classes` (set), `class:<class>` (hash of sums), `lengths:<class>` and `former-lengths:<class>` (strings:
  counted lengths of its answers, in the window under way and in the one before), `groups:<class>` (sorted
  set of group ids by seq), `group:<id>` (hash).
* `queue:<instance>` (list of group ids), `queues` (hash: version by instance).
* `leases` (hash: number of leases by instance).
* `instance:<instance>` (hash that expires with the heartbeat), `instances` (set).
* `unplaced:<instance>` (why it has no place; expires), `unplaced` (set).
* `plan` and `signal` (strings, which expire): the latest plan and forecast, for those who look at them.
* `leader` (hash that expires with the lead), `terms` (how often the lead was taken).
* Channels: `outputs:<gateway>`, `notices:<instance>`, `wakeups`.

Redis Cluster is not claimed to work: a script touches keys of several hash slots. Tested on Redis 7.0.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from qlm.domain.errors import InvalidValueError, StoreEmptiedError
from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import GatewayId, GroupId, InstanceId, RequestId, TokenIds
from qlm.domain.leadership import Term
from qlm.domain.lease import Epoch, Holder
from qlm.domain.lease_answer import LeaseAnswer
from qlm.domain.notices import CancelAsked, DrainAsked, InstanceNotice, QueueChanged
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.ports.clock import Clock
from qlm.domain.request import RequestCard, RequestRecord
from qlm.domain.view import ClusterView, Enqueued, QueuePlace, RequestFilter
from qlm.domain.virtual_queue import VirtualQueue
from qlm.store import redis_codec as codec
from qlm.store.effects import WAKE_SUBSCRIBED
from qlm.store.instances import steady
from qlm.store.leases import HOLDER_LOST
from qlm.store.limits import StoreLimits
from qlm.store.packing import pack, unpack
from qlm.store.plans import class_order
from qlm.store.redis_batch import Batched
from qlm.store.redis_feed import RedisFeed
from qlm.store.redis_plans import RedisPlans
from qlm.store.redis_scripts import Scripts, padded

CONNECT_TIMEOUT_S: Final = 2.0
REPLY_TIMEOUT_S: Final = 5.0
CONNECTIONS_MAX: Final = 32
APPEND_CHUNK: Final = 64
"""Log entries per script run: a run keeps every other client of Redis waiting, about 20 µs per entry."""


class RedisStore(RedisPlans):
    """A `qlm.domain.ports.store.Store` in Redis; each method's contract is that of the port.

    Calls are bounded in time and not repeated by themselves: after a StoreUnavailableError it is not
    known whether the operation happened.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        prefix: str = "qlm:",
        limits: StoreLimits | None = None,
        reply_timeout_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        """Prepare; the first operation connects.

        Args:
            url: `redis://[user:password@]host:port/db`, `rediss://` or `unix://`.
            clock: Dates events; heartbeats are timed by Redis itself.
            prefix: Before each key and channel, so that several QLMs can share a Redis.
            limits: How much is kept; `backlog_max` is not used here.
            reply_timeout_s: Longest wait for a reply, for a free connection, and for a sign of life
                from a subscription that has been silent for as long.

        Raises:
            InvalidValueError: The URL cannot be read.
        """
        timeouts: dict[str, Any] = {
            "socket_connect_timeout": min(CONNECT_TIMEOUT_S, reply_timeout_s),
            "socket_timeout": reply_timeout_s,
            "retry": Retry(NoBackoff(), 0),
        }
        address = _address(url)
        try:
            self._pool = BlockingConnectionPool.from_url(
                url, max_connections=CONNECTIONS_MAX, timeout=reply_timeout_s, **timeouts
            )
            # Unknown parameters in the address are found only here; redis-py gives this method no types.
            self._pool.make_connection()  # type: ignore[no-untyped-call]
        except (ValueError, TypeError) as error:
            expected = "redis://[user:password@]host:port/db, with parameters that redis-py knows"
            raise InvalidValueError("store", address, expected) from error
        client = Redis(connection_pool=self._pool)
        self._listener = Redis.from_url(url, **timeouts)
        self._feed = RedisFeed(self._listener, quiet_max_s=reply_timeout_s)
        scripts = Scripts(client, address, prefix=prefix, clock=clock, limits=limits or StoreLimits())
        super().__init__(client, scripts, prefix=prefix, address=address)
        self._enqueues = Batched(self._scripts, "enqueue")
        self._leases = Batched(self._scripts, "lease")

    async def incarnation(self) -> int:
        """Return the identity of the store's content."""
        incarnation = int(await self._scripts.run("incarnation"))
        self._scripts.saw_incarnation(incarnation)
        return incarnation

    # requests

    async def enqueue(
        self, card: RequestCard, watcher: GatewayId | None = None, incarnation: int | None = None
    ) -> Enqueued:
        """Index an accepted request as waiting, unless its id is known; add the watcher either way."""
        asked = "" if incarnation is None else incarnation
        answer = await self._enqueues.run(*codec.card_arguments(card), watcher or "", asked)
        if answer is None and incarnation is not None:
            raise StoreEmptiedError(incarnation)
        created, reply = answer
        known = codec.bare(card) if created else None
        return Enqueued(created=bool(created), record=codec.read_record(reply, known))

    async def record(self, id: RequestId) -> RequestRecord | None:
        """Return what is known of a request."""
        reply = await self._scripts.run("record", id)
        return codec.read_record(reply) if reply else None

    async def records(self, where: RequestFilter) -> Sequence[RequestRecord]:
        """List records, newest arrival first."""
        replies = await self._scripts.run("records", where.state or "", where.model or "", where.limit)
        return [codec.read_record(reply) for reply in replies]

    async def queue_place(self, id: RequestId) -> QueuePlace | None:
        """Tell where a request stands in the order of its class, and in its group; None unless it waits."""
        reply = await self._scripts.run("queue_place", id)
        return codec.read_place(reply) if reply else None

    async def cancel(self, id: RequestId, outcome: Outcome = Outcome.CANCELLED) -> RequestRecord | None:
        """End a request that nobody runs at once, or ask the live holder of one to end it."""
        reply = await self._scripts.run("cancel", id, outcome)
        return codec.read_record(reply) if reply else None

    async def withdraw(self, card: RequestCard) -> bool:
        """Note as cancelled, in one step, a request that was not accepted, unless its id is known."""
        return bool(await self._scripts.run("withdraw", *codec.card_arguments(card), Outcome.CANCELLED))

    async def expire(self, now_ns: int, limit: int = 1000) -> Sequence[RequestId]:
        """End as expired the waiting requests whose `drop_at_ns` has passed; return their ids."""
        ids = await self._scripts.run("expire", padded(now_ns + 1), limit, now_ns=now_ns)
        return [RequestId(id.decode()) for id in ids]

    # leases and output

    async def lease(self, card: RequestCard, holder: Holder, group: GroupId | None) -> LeaseAnswer:
        """Take the lease of a request whose message `holder` has in hand; index it if unknown."""
        arguments = (*codec.card_arguments(card), holder.instance, holder.session, group or "")
        return codec.read_lease_answer(await self._leases.run(*arguments), holder)

    async def append(self, entries: Sequence[LogEntry]) -> Sequence[AppendResult]:
        """Append to output logs, end requests, and announce both to their watchers, entry by entry."""
        if not entries:
            return []
        calls = [
            [
                argument
                for entry in entries[at : at + APPEND_CHUNK]
                for argument in codec.entry_arguments(entry)
            ]
            for at in range(0, len(entries), APPEND_CHUNK)
        ]
        answers = await self._scripts.run_each("append", calls)
        return [AppendResult(word.decode()) for words in answers for word in words]

    async def park(self, id: RequestId, epoch: Epoch, why: str) -> bool:
        """Note that the holder has evicted the request and keeps it."""
        return await self._hold(id, epoch, "park", why)

    async def resume(self, id: RequestId, epoch: Epoch) -> bool:
        """Note that the holder runs a parked request again."""
        return await self._hold(id, epoch, "resume", "")

    async def release(self, id: RequestId, epoch: Epoch, why: str) -> bool:
        """Give the lease back: the request waits again, unless its end was asked for meanwhile."""
        return await self._hold(id, epoch, "release", why)

    async def _hold(self, id: RequestId, epoch: Epoch, what: str, why: str) -> bool:
        return bool(await self._scripts.run("hold", id, epoch.incarnation, epoch.n, what, why))

    async def demote(self, card: RequestCard, epoch: Epoch, why: str) -> bool:
        """Give the lease back: the request waits again, in the class that the card says."""
        arguments = (*codec.card_arguments(codec.bare(card)), epoch.incarnation, epoch.n, why)
        return bool(await self._scripts.run("demote", *arguments))

    async def reap(self, term: Term | None = None) -> Sequence[RequestId]:
        """Release the leases of holders that no longer live; their requests wait again. Returns their ids."""
        ids = await self._fenced("reap", HOLDER_LOST, term=term)
        return [RequestId(id.decode()) for id in ids]

    async def reregister(self, card: RequestCard, holder: Holder, output: TokenIds) -> LeaseAnswer:
        """Restore a running request that the store has forgotten, with its whole output log."""
        arguments = (*codec.card_arguments(card), holder.instance, holder.session, pack(output))
        return codec.read_lease_answer(await self._scripts.run("reregister", *arguments), holder)

    async def read_output(self, id: RequestId, offset: int) -> OutputSlice | None:
        """Return the log from `offset` on, with the outcome if ended; None if the request is unknown."""
        reply = await self._scripts.run("read_output", id, offset)
        if not reply:
            return None
        start, packed, outcome, detail = reply
        return OutputSlice(
            id=id,
            offset=start,
            token_ids=unpack(packed),
            outcome=Outcome(outcome.decode()) if outcome else None,
            detail=detail.decode(),
        )

    async def watch(self, id: RequestId, watcher: GatewayId) -> None:
        """Announce further output of a request to this gateway, too."""
        await self._scripts.run("watch", id, watcher, 1)

    async def unwatch(self, id: RequestId, watcher: GatewayId) -> int:
        """Stop announcing to this gateway; return how many other watchers remain."""
        return int(await self._scripts.run("watch", id, watcher, 0))

    async def outputs(self, watcher: GatewayId) -> AsyncIterator[Sequence[OutputSlice]]:
        """Iterate over announced output, in batches; subscribed when the first, empty one comes."""
        channel = f"{self._prefix}outputs:{watcher}"
        async for slices in self._feed.listen(channel, codec.read_slices, _nothing):
            yield slices

    # instances

    async def heartbeat(self, status: InstanceStatus, ttl_s: float) -> None:
        """Say that an instance lives; silent for `ttl_s`, it counts as dead."""
        texts = (codec.status_argument(status), codec.status_argument(steady(status)))
        ttl_ms = max(1, round(ttl_s * 1000))
        await self._scripts.run("heartbeat", status.id, status.holder.session, *texts, ttl_ms)

    async def leave(self, holder: Holder) -> None:
        """Say that this life of the instance is over, at once."""
        await self._scripts.run("leave", holder.instance, holder.session)

    async def say_unplaced(self, instance: InstanceId, why: str, ttl_s: float) -> None:
        """Say that an instance is to run and has no place yet, and why; it counts for `ttl_s`."""
        await self._scripts.run("say_unplaced", instance, why, max(1, round(ttl_s * 1000)))

    async def unplaced(self) -> Mapping[InstanceId, str]:
        """Tell which instances were said to have no place, and why; those that live are left out."""
        told = [text.decode() for text in await self._scripts.run("unplaced")]
        return {InstanceId(id): why for id, why in sorted(zip(told[::2], told[1::2], strict=True))}

    async def virtual_queue(self, instance: InstanceId) -> VirtualQueue:
        """Return the groups of an instance in order, with their counts; empty if it has none."""
        version, groups = await self._scripts.run("virtual_queue", instance)
        return VirtualQueue(instance=instance, version=version, groups=tuple(map(codec.read_group, groups)))

    async def ask_drain(self, instance: InstanceId) -> bool:
        """Ask an instance to drain; False if it is not alive."""
        return bool(await self._scripts.run("ask_drain", instance))

    async def notices(self, instance: InstanceId) -> AsyncIterator[InstanceNotice]:
        """Iterate over notices to an instance; subscribed when the first one comes."""
        channel = f"{self._prefix}notices:{instance}"
        standing = partial(self._standing, instance)
        async for notices in self._feed.listen(channel, codec.read_notice, standing):
            for notice in dict.fromkeys(notices):
                yield notice

    async def _standing(self, instance: InstanceId) -> Sequence[InstanceNotice]:
        drain, cancels = await self._scripts.run("standing", instance)
        asked = sorted(zip(cancels[::2], cancels[1::2], strict=True))
        return (
            QueueChanged(),
            *(CancelAsked(id=RequestId(id.decode()), outcome=Outcome(o.decode())) for id, o in asked),
            *((DrainAsked(),) if drain else ()),
        )

    # planning

    async def view(self) -> ClusterView:
        """Read classes, groups, live instances and virtual queues at one moment."""
        classes, statuses, queues, leases = await self._scripts.run("view")
        views = sorted(map(codec.read_class, classes), key=lambda view: class_order(view.cls))
        groups = {group.id: group for view in views for group in view.groups}
        return ClusterView(
            classes=tuple(views),
            instances=tuple(sorted(map(codec.read_status, statuses), key=lambda status: status.id)),
            queues=tuple(codec.read_queue(queue, groups) for queue in sorted(queues)),
            leased=codec.read_counts(leases),
        )

    async def wakeups(self) -> AsyncIterator[str]:
        """Iterate over hints that the controller has something to do; subscribed when the first comes."""
        channel = f"{self._prefix}wakeups"
        async for reasons in self._feed.listen(channel, codec.read_wakeup, _subscribed):
            for reason in dict.fromkeys(reasons):
                yield reason

    async def close(self) -> None:
        """End all iterators and let go of connections."""
        await self._feed.close()
        await self._listener.aclose()
        await self._client.aclose()
        await self._pool.aclose()


async def _nothing() -> Sequence[OutputSlice]:
    return ()


async def _subscribed() -> Sequence[str]:
    return (WAKE_SUBSCRIBED,)


def _address(url: str) -> str:
    """Leave user, password and parameters, which may be both, out of what messages show."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"
