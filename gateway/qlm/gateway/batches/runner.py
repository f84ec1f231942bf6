"""Runs the batches that no other gateway runs."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import Final, ParamSpec

from qlm.domain.ports.outbox import EndEvent
from qlm.domain.shell.tasks import REPEAT_S, end_tasks
from qlm.gateway.batches.batch_run import BatchPausedError, BatchRun, ClaimLostError
from qlm.gateway.batches.line_routes import LineRoutes
from qlm.gateway.batches.turns import in_turns, only_ends, to_yield
from qlm.gateway.files.port import Claim
from qlm.gateway.files.records import Batch, BatchSpec
from qlm.gateway.files.storage import Storage
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.webhooks.endpoints import BATCH_EVENTS

P = ParamSpec("P")

_log = logging.getLogger(__name__)

RETRY_S: Final = 10.0
"""Pause before a batch that stopped with an error goes on."""

RELEASE_S: Final = 3.0
"""Time for giving back a claim: a storage that is away delays no stop, and the claim runs out."""

BATCHES_MAX: Final = 64
"""Batches that one gateway runs at a time; others wait for it, or for another gateway."""

ENDING_MAX: Final = 64
"""Batches beside them that are cancelled or past their window: they need no engine, and wait for no other."""

READS_MAX: Final = 8
"""Batches that are read at a time."""

REREADS_MAX: Final = 16
"""Batches that a look reads again of those that rest or wait, so that many cost no more than these."""


@dataclass(frozen=True, slots=True)
class _Running:
    """A batch that runs here; one that only ends takes no room of the others."""

    task: asyncio.Task[None]
    spec: BatchSpec
    only_ends: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """A batch that does not run here, as it was read."""

    batch: Batch
    place: str
    read_s: float


class BatchRunner:
    """The batches that one gateway runs, with a bounded number of lines in work."""

    def __init__(self, gateway: Gateway, storage: Storage, routes: LineRoutes) -> None:
        """Run nothing yet.

        Args:
            gateway: The gateway.
            storage: Files and batches.
            routes: The routes of lines.
        """
        self._gateway = gateway
        self._storage = storage
        self._routes = routes
        self._slots = asyncio.Semaphore(storage.limits.lines_in_work_max)
        self._running: dict[str, _Running] = {}
        self._seen: dict[str, _Seen] = {}
        self._releases: set[asyncio.Task[None]] = set()
        self._reported: set[str] = set()  # batches that are not closed, though their end is in the outbox

    async def run(self) -> None:
        """Look for batches until cancelled; then leave them to others."""
        pace = self._storage.pace
        swept_s = -pace.sweep_s
        try:
            while True:
                now_s = asyncio.get_running_loop().time()
                try:
                    await self._scan()
                except Exception as error:
                    self._gateway.faults.note(_log, error, "cannot look for batches")
                if now_s - swept_s >= pace.sweep_s:
                    swept_s = now_s  # one that fails costs as many calls: it is not tried at each look
                    await self._sweep()
                await asyncio.sleep(pace.scan_s)
        finally:
            try:
                await end_tasks([each.task for each in self._running.values()])
            finally:
                if self._releases:  # also those of batches that have just ended
                    await asyncio.wait(self._releases)

    async def _scan(self) -> None:
        """Read the open batches that are new or were read long ago; run those whose turn it is."""
        places = await self._storage.call(self._storage.batches.open_places)
        self._seen = {id: seen for id, seen in self._seen.items() if id in places}
        self._reported.intersection_update(places)
        due = self._to_read(places)
        for start in range(0, len(due), READS_MAX):
            some = due[start : start + READS_MAX]
            await asyncio.gather(*(self._noted(self._read, id, places[id]) for id in some))
        now_s = self._gateway.clock.now_ns() // 10**9
        seen = [each for each in self._seen.values() if not each.batch.ended and not each.batch.rests(now_s)]
        for each in seen:
            if only_ends(each.batch, now_s) and len(self._specs(only_ends=True)) < ENDING_MAX:
                await self._noted(self._claim, each.batch.spec.id, True)
        await self._give_turns([each.batch.spec for each in seen if not only_ends(each.batch, now_s)])

    def _to_read(self, places: Iterable[str]) -> list[str]:
        """Return the batches to read: all new ones, and a few of those that were read longest ago."""
        new = [id for id in places if id not in self._running and id not in self._seen]
        before_s = asyncio.get_running_loop().time() - self._storage.pace.rest_s
        again = nsmallest(REREADS_MAX, self._seen, key=lambda id: self._seen[id].read_s)
        return [*new, *(id for id in again if self._seen[id].read_s <= before_s)]

    async def _noted(self, what: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do something for one batch; a failure costs no other one its turn."""
        try:
            await what(*args, **kwargs)
        except Exception as error:
            self._gateway.faults.note(_log, error, "cannot run batch %s", args[0])

    async def _read(self, id: str, place: str) -> None:
        """Read a batch before a claim: none is made of one that cannot be read."""
        self._seen.pop(id, None)
        batch = await self._storage.call(self._storage.batches.read, place)
        if batch is None:
            return
        self._seen[id] = _Seen(batch, place, asyncio.get_running_loop().time())
        if batch.ended:  # its gateway died before it was closed
            await self._close(batch, place)

    async def _give_turns(self, waiting: Sequence[BatchSpec]) -> None:
        """Claim as many batches as there is room for; a tenant with many yields places to one with few."""
        for spec in in_turns(waiting, self._specs()):
            yields = None
            if len(self._specs()) >= BATCHES_MAX and (yields := to_yield(spec, self._specs())) is None:
                return
            await self._noted(self._claim, spec.id, False)
            if yields is not None and {spec.id, yields.id} <= self._running.keys():
                _log.info("batch %s yields to %s of another tenant", yields.id, spec.id)
                await end_tasks([self._running[yields.id].task])

    async def _claim(self, id: str, only_ends: bool) -> None:
        """Run a batch, unless another gateway does; it is read again before the next try."""
        seen = self._seen.pop(id)
        claim = await self._storage.call(self._storage.batches.claim, seen.place)
        if claim is not None:
            task = asyncio.create_task(self._run(id, seen.batch, seen.place, claim))
            self._running[id] = _Running(task, seen.batch.spec, only_ends)

    def _specs(self, *, only_ends: bool = False) -> list[BatchSpec]:
        """Return the batches that run here."""
        return [each.spec for each in self._running.values() if each.only_ends is only_ends]

    async def _run(self, id: str, batch: Batch, place: str, claim: Claim) -> None:
        storage = self._storage
        try:
            prepare = self._routes[batch.spec.endpoint]
            await BatchRun(self._gateway, storage, self._slots, prepare, batch, claim).run()
            await self._close(await storage.call(storage.batches.read, place), place)
        except BatchPausedError:
            _log.info("the batch %s is paused", id)
        except ClaimLostError:
            _log.info("another gateway runs the batch %s", id)
        except Exception as error:
            self._gateway.faults.note(_log, error, "batch %s stopped; it goes on later", id)
            await asyncio.sleep(RETRY_S)
        finally:
            del self._running[id]
            release = asyncio.create_task(self._release(id, claim))  # the end of this task does not cancel it
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)

    async def _release(self, id: str, claim: Claim) -> None:
        try:
            async with asyncio.timeout(RELEASE_S):
                await asyncio.shield(self._storage.call(claim.release))
        except Exception as error:  # of whatever kind: the claim runs out
            self._gateway.faults.note(_log, error, "the claim to batch %s is not given back", id)

    async def _close(self, batch: Batch | None, place: str) -> None:
        """Close a batch that has ended, once its event is in the outbox: the batch is open until then."""
        if batch is None or not batch.ended:
            return
        id, notifies = batch.spec.id, self._gateway.notifies(BATCH_EVENTS, batch.spec.tenant)
        if notifies and id not in self._reported:
            state = batch.state
            at_ns = (state.ended_s or 0) * 10**9
            event = EndEvent(
                subject=batch.spec.id, ended_as=state.status, tenant=batch.spec.tenant, at_ns=at_ns
            )
            await self._gateway.store.add_end(event)
            self._reported.add(id)
        await self._storage.call(self._storage.batches.close, place)

    async def _sweep(self) -> None:
        files, batches = self._storage.files.sweep, self._storage.batches.sweep
        for sweep in (files, partial(batches, self._storage.limits.kept_s)):
            try:
                await self._storage.call(sweep)
            except Exception as error:  # the other one can be done all the same
                self._gateway.faults.note(_log, error, "cannot delete files and batches that have expired")


async def run_batches(gateway: Gateway, routes: LineRoutes) -> None:
    """Run batches until cancelled, if this gateway keeps files."""
    if gateway.storage is not None:
        await BatchRunner(gateway, gateway.storage, routes).run()


@contextlib.asynccontextmanager
async def batches_running(gateway: Gateway, routes: LineRoutes) -> AsyncIterator[None]:
    """Run batches while inside, if this gateway keeps files."""
    task = asyncio.create_task(run_batches(gateway, routes))
    try:
        yield
    finally:
        await end_tasks([task], grace_s=RELEASE_S + REPEAT_S)
