"""Shared state in Redis.

Every operation is one Lua script, called by its digest. It changes the state and publishes the announcements
in one atomic step, so the two cannot diverge. Keys, after a configurable prefix:

* `incarnation`: set once from a clock; an emptied Redis gets a larger one with the next operation.
* `request:<id>` (hash: metadata as `card`, state, `incarnation`, lease, outcome, times, `tokens` in its log),
  `log:<id>` (string: the output log, four bytes per token), `events:<id>` (list), `watchers:<id>` (set).
* `indexed`: time when the global queue was last indexed into an empty Redis; missing until then.
* `requests` (all requests) and `held` (leased ones), `waiting:<class>`, `drops`: sorted sets whose members
  are `<time as 20 digits>:<id>`, all of score 0, so that they sort exactly by time, then id.
* `ended` (list of the same members, oldest ended first).
* `classes` (set: those with waiting requests or groups at the last view, or used since), `groups:<class>`
  (sorted set of group ids by seq), `group:<id>` (hash).
* `class:<class>` (hash of sums), `prompts:<class>` (string: counts of prompt lengths), `lengths:<class>` and
  `former-lengths:<class>` (strings: histograms of answer lengths in the window under way and in the one
  before). They go when the class has been idle for as long as results live.
* `idle`: sorted set like `drops`: the other classes, by the time since which they are idle.
* `queue:<instance>` (list of group ids), `queues` (hash: version by instance).
* `leases` (hash: number of leases by instance).
* `instance:<instance>` (hash that expires with the heartbeat), `instances` (set).
* `unplaced:<instance>` (the reason why it has no place; expires), `unplaced` (set).
* `plan`, `signal` and `clusters` (strings that expire): the latest plan, the latest forecast for admission,
  and the token clusters.
* `history` (string that expires): what the controllers have learned.
* `api_keys` (hash): API keys by id.
* `media:<id>` (string that expires): images, sound and video of the prompt of a request that has not ended.
* `ends` (sorted set like `drops`: ends of which other programs are to be notified, by the time at which
  they are due), `end:<subject>` (hash: one of them), `ends_dropped` (number of those that were too
  many; it expires a day after the last of them).
* `aside:<key>` (expires after a day): a key `<key>` of these that held another type than it should, or
  unreadable numbers, and counts as lost since; `aside` (number, expires with the last one): how many.
  `api_keys` is set aside only when a key is added: until then its readers go on with those they know.
* `probe` (string that expires): written to see whether Redis can write.
* `leader` (hash that expires with the leadership), `terms` (number of terms so far).
* `deployment` (hash: id of the deployment that uses this Redis, and the address of its broker),
  `members:<id>` (string that expires: processes of that deployment live).
* Channels: `outputs:<gateway>`, `notices:<instance>`, `wakeups`.

Redis Cluster is not supported: a script touches keys of several hash slots. Tested on Redis 7.0.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from qlm.domain.errors import InvalidValueError, StoreEmptiedError
from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import GatewayId, GroupId, InstanceId, RequestId, SessionId, TokenIds
from qlm.domain.lease import Epoch, Holder, InstanceHeld
from qlm.domain.lease_answer import LeaseAnswer
from qlm.domain.notices import InstanceNotice
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import Store
from qlm.domain.request import RequestMetadata, RequestRecord
from qlm.domain.view import ClusterView, Enqueued, RequestPosition
from qlm.domain.virtual_queue import VirtualQueue
from qlm.store.core.effects import WAKE_SUBSCRIBED
from qlm.store.core.instances import steady
from qlm.store.core.limits import StoreLimits
from qlm.store.core.plans import class_order
from qlm.store.core.token_codec import encode_tokens
from qlm.store.redis import announcements, codec, plan_codec
from qlm.store.redis.api_keys import RedisApiKeys
from qlm.store.redis.deployment import RedisMark
from qlm.store.redis.errors import readable, readable_ones
from qlm.store.redis.feed import RedisFeed
from qlm.store.redis.media import PUTS_MAX, RedisMedia
from qlm.store.redis.outbox import RedisOutbox
from qlm.store.redis.pipeline import ScriptPipeline
from qlm.store.redis.plans import RedisPlans
from qlm.store.redis.reads import RedisReads
from qlm.store.redis.scripts import Scripts
from qlm.store.redis.server import PrimaryClient, RedisWarnings

CONNECT_TIMEOUT_S: Final = 2.0
REPLY_TIMEOUT_S: Final = 5.0
CONNECTIONS_MAX: Final = 32
APPEND_CHUNK: Final = 64
"""Log entries per script run: a run blocks every other client of Redis, about 20 µs per entry."""


class RedisStore(RedisPlans, RedisReads, RedisOutbox, RedisApiKeys, RedisMedia, RedisWarnings, Store):
    """Store in Redis.

    Calls are bounded in time and not retried: after a StoreUnavailableError the operation may have happened.
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
            clock: Clock of events; Redis itself times heartbeats.
            prefix: Prefix of each key and channel, so that several QLMs can share a Redis.
            limits: Retention limits; `backlog_max` is not used here.
            reply_timeout_s: Time limit for a reply, for a free connection, and for the keep-alive of a
                subscription.

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
            self._listener = Redis.from_url(url, **timeouts)
            # Only this call rejects unknown parameters of the address; redis-py gives it no types.
            for pool in (self._pool, self._listener.connection_pool):
                pool.make_connection()  # type: ignore[no-untyped-call]
        except (ValueError, TypeError) as error:
            expected = "redis://[user:password@]host:port/db, with parameters that redis-py knows"
            raise InvalidValueError("store", address, expected) from error
        self._clock = clock
        client = PrimaryClient(connection_pool=self._pool)
        self._feed = RedisFeed(self._listener, quiet_max_s=reply_timeout_s)
        self._pipeline = ScriptPipeline(self._listener.connection_pool.make_connection, reply_timeout_s)
        scripts = Scripts(self._pipeline, address, prefix=prefix, clock=clock, limits=limits or StoreLimits())
        super().__init__(client, scripts, prefix=prefix, address=address)
        self._puts = asyncio.Semaphore(PUTS_MAX)

    def mark(self) -> RedisMark:
        """Return this Redis as bearer of the mark of its deployment."""
        return RedisMark(self._scripts, self._address)

    async def incarnation(self) -> int:
        incarnation = int(await self._scripts.run("incarnation"))
        self._scripts.saw_incarnation(incarnation)
        return incarnation

    async def probe(self) -> None:
        await self._scripts.run("probe")

    # requests

    async def enqueue(
        self, metadata: RequestMetadata, watcher: GatewayId | None = None, incarnation: int | None = None
    ) -> Enqueued:
        expected = "" if incarnation is None else incarnation
        answer = await self._scripts.run(
            "enqueue", *codec.metadata_arguments(metadata), watcher or "", expected
        )
        if answer is None and incarnation is not None:
            raise StoreEmptiedError(incarnation)
        created, reply = answer
        known = codec.bare(metadata) if created else None
        with readable():
            return Enqueued(created=bool(created), record=codec.read_record(reply, known))

    async def record(self, id: RequestId) -> RequestRecord | None:
        reply = await self._scripts.run("record", id)
        with readable():
            return codec.read_record(reply) if reply else None

    async def queue_position(self, id: RequestId) -> RequestPosition | None:
        reply = await self._scripts.run("queue_position", id)
        with readable():
            return codec.read_position(reply) if reply else None

    async def cancel(
        self, id: RequestId, outcome: Outcome = Outcome.CANCELLED, why: str = ""
    ) -> RequestRecord | None:
        reply = await self._scripts.run("cancel", id, outcome, why)
        with readable():
            return codec.read_record(reply) if reply else None

    async def withdraw(self, metadata: RequestMetadata) -> bool:
        return bool(
            await self._scripts.run("withdraw", *codec.metadata_arguments(metadata), Outcome.CANCELLED)
        )

    # leases and output

    async def lease(self, metadata: RequestMetadata, holder: Holder, group: GroupId | None) -> LeaseAnswer:
        arguments = (*codec.metadata_arguments(metadata), holder.instance, holder.session, group or "")
        answer = await self._scripts.run("lease", *arguments)
        with readable():
            return codec.read_lease_answer(answer, holder)

    async def append(self, entries: Sequence[LogEntry]) -> Sequence[AppendResult]:
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

    def append_now(self, entries: Sequence[LogEntry]) -> None:
        return None

    async def park(self, id: RequestId, epoch: Epoch, why: str) -> bool:
        return await self._change_lease(id, epoch, "park", why)

    async def resume(self, id: RequestId, epoch: Epoch) -> bool:
        return await self._change_lease(id, epoch, "resume", "")

    async def release(self, id: RequestId, epoch: Epoch, why: str) -> bool:
        return await self._change_lease(id, epoch, "release", why)

    async def _change_lease(self, id: RequestId, epoch: Epoch, what: str, why: str) -> bool:
        return bool(await self._scripts.run("change_lease", id, epoch.incarnation, epoch.n, what, why))

    async def demote(self, metadata: RequestMetadata, epoch: Epoch, why: str) -> bool:
        arguments = (*codec.metadata_arguments(codec.bare(metadata)), epoch.incarnation, epoch.n, why)
        return bool(await self._scripts.run("demote", *arguments))

    async def reregister(self, metadata: RequestMetadata, holder: Holder, output: TokenIds) -> LeaseAnswer:
        arguments = (
            *codec.metadata_arguments(metadata),
            holder.instance,
            holder.session,
            encode_tokens(output),
        )
        answer = await self._scripts.run("reregister", *arguments)
        with readable():
            return codec.read_lease_answer(answer, holder)

    async def outputs(self, watcher: GatewayId) -> AsyncIterator[Sequence[OutputSlice]]:
        channel = f"{self._prefix}outputs:{watcher}"
        async for slices in self._feed.listen(channel, announcements.read_slices, _nothing):
            yield slices

    # instances

    async def heartbeat(
        self, status: InstanceStatus, ttl_s: float, replaces: SessionId | None = None
    ) -> InstanceHeld | None:
        texts = (codec.status_argument(status), codec.status_argument(steady(status)))
        ttl_ms = max(1, round(ttl_s * 1000))
        arguments = (status.id, status.holder.session, *texts, ttl_ms, replaces or "")
        reply = await self._scripts.run("heartbeat", *arguments)
        with readable():
            return codec.read_held(reply) if reply else None

    async def leave(self, holder: Holder) -> None:
        await self._scripts.run("leave", holder.instance, holder.session)

    async def report_unplaced(self, instance: InstanceId, why: str, ttl_s: float) -> None:
        await self._scripts.run("report_unplaced", instance, why, max(1, round(ttl_s * 1000)))

    async def report_refused_agent(self, instance: InstanceId, why: str, ttl_s: float) -> None:
        await self._scripts.run("report_refused_agent", instance, why, max(1, round(ttl_s * 1000)))

    async def refused_agents(self) -> Mapping[InstanceId, str]:
        pairs = [text.decode() for text in await self._scripts.run("refused_agents")]
        return {InstanceId(id): why for id, why in sorted(zip(pairs[::2], pairs[1::2], strict=True))}

    async def unplaced(self) -> Mapping[InstanceId, str]:
        pairs = [text.decode() for text in await self._scripts.run("unplaced")]
        return {InstanceId(id): why for id, why in sorted(zip(pairs[::2], pairs[1::2], strict=True))}

    async def virtual_queue(self, instance: InstanceId) -> VirtualQueue:
        version, groups, forecasts, homes = await self._scripts.run("virtual_queue", instance)
        with readable():
            known, own = plan_codec.read_forecasts(forecasts), plan_codec.read_homes(homes)
        ordered = tuple(readable_ones(codec.read_group, groups))
        return VirtualQueue(instance=instance, version=version, groups=ordered, forecasts=known, homes=own)

    async def ask_drain(self, instance: InstanceId) -> bool:
        return bool(await self._scripts.run("ask_drain", instance))

    async def notices(self, instance: InstanceId) -> AsyncIterator[InstanceNotice]:
        channel = f"{self._prefix}notices:{instance}"
        standing = partial(self._standing, instance)
        async for notices in self._feed.listen(channel, announcements.read_notice, standing):
            for notice in dict.fromkeys(notices):
                yield notice

    async def _standing(self, instance: InstanceId) -> Sequence[InstanceNotice]:
        reply = await self._scripts.run("standing", instance)
        with readable():
            return announcements.read_standing(reply)

    # planning

    async def view(self) -> ClusterView:
        classes, statuses, queues, leases = await self._scripts.run("view")
        views = sorted(readable_ones(codec.read_class, classes), key=lambda view: class_order(view.cls))
        groups = {group.id: group for view in views for group in view.groups}
        live = readable_ones(codec.read_status, statuses)
        with readable():
            return ClusterView(
                classes=tuple(views),
                instances=tuple(sorted(live, key=lambda status: status.id)),
                queues=tuple(plan_codec.read_queue(queue, groups) for queue in sorted(queues)),
                leased=codec.read_counts(leases),
            )

    async def wakeups(self) -> AsyncIterator[str]:
        channel = f"{self._prefix}wakeups"
        async for reasons in self._feed.listen(channel, announcements.read_wakeup, _subscribed):
            for reason in dict.fromkeys(reasons):
                yield reason

    async def close(self) -> None:
        await self._feed.close()
        await self._pipeline.close()
        await self._listener.aclose()
        await self._client.aclose()
        await self._pool.aclose()


async def _nothing() -> Sequence[OutputSlice]:
    return ()


async def _subscribed() -> Sequence[str]:
    return (WAKE_SUBSCRIBED,)


def _address(url: str) -> str:
    """Return an address for messages: without user and password, which parameters may contain as well."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"
