"""One batch under a claim: validated, run line by line, ended."""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import islice
from typing import BinaryIO, Final, get_args

import orjson

from qlm.domain.shell.tasks import end_tasks
from qlm.gateway.batches.line_routes import PrepareLine
from qlm.gateway.batches.line_run import Answered, LineRun, not_run
from qlm.gateway.batches.line_slots import LineSlots
from qlm.gateway.batches.lines import Line, LineError, answered, check, raw_lines, read_line
from qlm.gateway.files.port import Claim, Part
from qlm.gateway.files.records import Batch, BatchState
from qlm.gateway.files.storage import Storage
from qlm.gateway.sessions.gateway import Gateway

RENEW_S: Final = 3.0
"""Time between two renewals of a claim, a fraction of `CLAIM_TTL_S`."""

STOP_S: Final = 10.0
"""Time for requests that are cancelled to end; those still open then count as not run."""

_READ: Final = 64
"""Lines read at a time."""

_PARTS: Final[tuple[Part, ...]] = get_args(Part)

_ENDS: Final[Mapping[str, tuple[str, str]]] = {
    "cancelled": ("batch_cancelled", "the batch was cancelled before this line had an answer"),
    "expired": ("batch_expired", "the completion window was over before this line had an answer"),
}
"""Code and message of lines without an answer, by the status of their batch."""


class ClaimLostError(Exception):
    """Another gateway runs the batch, or has ended it."""


class BatchPausedError(Exception):
    """The batch is paused, and none of its lines is in work; any gateway goes on with it after that."""


class BatchRun:
    """Runs one batch at one gateway."""

    def __init__(
        self,
        gateway: Gateway,
        storage: Storage,
        slots: asyncio.Semaphore,
        prepare: PrepareLine,
        batch: Batch,
        claim: Claim,
    ) -> None:
        """Go on with a batch.

        Args:
            gateway: Runs its lines.
            storage: Where it is, and where its results go.
            slots: One for each line that may be in work at this gateway.
            prepare: Admits its lines.
            batch: The batch.
            claim: The right to run it.
        """
        self._gateway = gateway
        self._storage = storage
        self._slots = LineSlots(slots)
        self._prepare = prepare
        self._spec = batch.spec
        self._claim = claim
        self._state = claim.state
        self._was_begun = claim.state.started_s is not None  # lines may have requests of an earlier run
        self._end_status = "completed"
        self._open: dict[asyncio.Task[None], tuple[Line, LineRun]] = {}
        self._left_out = deque[Line]()  # begun, but not queued since the batch is paused
        self._answered = set[int]()  # numbers of the open lines whose end is being written
        self._writing = asyncio.Lock()
        self._broken: BaseException | None = None

    async def run(self) -> None:
        """Run the batch to its end.

        Raises:
            BatchPausedError: It is paused, and none of its lines is in work.
            ClaimLostError: Another gateway runs it, or has ended it.
        """
        await self._look()
        watch = asyncio.create_task(self._watch())
        work = asyncio.create_task(self._work())
        try:
            await asyncio.wait((watch, work), return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            await work
        finally:
            try:
                await end_tasks([watch, work, *self._open])
            finally:  # the gateway may stop while they end
                self._claim.close()

    # --- steps

    async def _work(self) -> None:
        if self._state.started_s is None and not await self._validated():
            return
        done = await self._storage.call(self._take_over)
        await self._run_lines(done)
        await self._finish()

    async def _validated(self) -> bool:
        await self._note(replace(self._state, status="validating"))
        total, errors = await self._storage.call(self._checked)
        if errors:
            plain = tuple(asdict(each) for each in errors)
            await self._storage.call(self._claim.end, BatchState(status="failed", errors=plain))
            return False
        await self._note(replace(self._state, status="in_progress", total=total, started_s=self._now_s()))
        return True

    def _take_over(self) -> set[str]:
        """Begin own parts with the whole lines of an earlier claim's; return their custom ids."""
        done: set[str] = set()
        counts = []
        self._claim.begin()
        for part in _PARTS:
            before = len(done)
            for custom_id, raw in answered(self._claim.earlier(part)):
                if custom_id not in done:
                    done.add(custom_id)
                    self._claim.write(part, raw)
            counts.append(len(done) - before)
            self._claim.forget_earlier(part)
        self._state = replace(self._state, completed=counts[0], failed=counts[1])
        return done

    async def _run_lines(self, done: set[str]) -> None:
        file = await self._storage.open(self._claim.input)
        try:
            lines = self._lines(file)
            while some := await self._storage.call(_next, lines):
                for line in some:
                    if line.custom_id not in done:
                        await self._begin(line)
        finally:
            self._storage.close_later(file)
        await self._all_ended()

    async def _begin(self, line: Line) -> None:
        """Begin a line as soon as there is a slot for it.

        Once the batch stops, a line begins only to find the request that an earlier run has queued: that is
        then cancelled, or its answer taken.
        """
        self._check_unbroken()
        run = LineRun(self._gateway, self._spec, line, self._prepare, self._slots)
        if not self._slots.stopped.is_set() and await self._slots.take():
            self._start(line, run).add_done_callback(lambda _: self._slots.release())
        elif self._was_begun and await run.was_queued():
            self._start(line, run)
        else:
            await self._write(self._unanswered(line))

    def _start(self, line: Line, run: LineRun) -> asyncio.Task[None]:
        task = asyncio.create_task(self._run_line(line, run))
        self._open[task] = line, run
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        if not task.cancelled():
            self._broken = self._broken or task.exception()

    def _check_unbroken(self) -> None:
        """Raise what a line has failed with, unless it is an end of the line: nothing may be left out."""
        if self._broken is not None:
            raise self._broken

    async def _run_line(self, line: Line, run: LineRun) -> None:
        found = await run.run()
        if self._now_s() >= self._spec.expires_s and not self._slots.stopped.is_set():
            self._stop("expired")
        stopped = self._slots.stopped.is_set()
        if found is None and not stopped:
            self._left_out.append(line)
            return
        if found is None or (not found.ok and stopped):
            found = self._unanswered(line)
        self._answered.add(line.number)
        try:
            await self._write(found)
        finally:
            self._answered.discard(line.number)

    async def _all_ended(self) -> None:
        """Wait for the open lines, and begin those left out again; once the batch stops, cancel them."""
        while (self._open or self._left_out) and not self._slots.stopped.is_set():
            while self._left_out:
                await self._begin(self._left_out.popleft())
            if self._open:
                await self._some_end()
        while self._left_out:
            await self._begin(self._left_out.popleft())
        if self._open:
            await self._cancel_open()
        self._check_unbroken()

    async def _some_end(self) -> None:
        """Wait until one of the open lines has an end, or the batch stops."""
        stopped = asyncio.create_task(self._slots.stopped.wait())
        try:
            await asyncio.wait((stopped, *self._open), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # for `_ended`
        finally:
            await end_tasks([stopped])

    async def _cancel_open(self) -> None:
        """Cancel the requests of the open lines; those that do not end in time have no answer."""
        opened = dict(self._open)
        for _, run in opened.values():
            if run.request_id is not None:
                await self._gateway.store.cancel(run.request_id, why=self._slots.why_stopped)
        await asyncio.wait(opened, timeout=STOP_S)
        left = [task for task, (line, _) in opened.items() if not self._has_end(task, line)]
        await end_tasks(left)
        for task in left:
            await self._write(self._unanswered(opened[task][0]))
        if self._open:  # their ends are being written
            await asyncio.wait(tuple(self._open))
            await asyncio.sleep(0)  # for `_ended`

    def _has_end(self, task: asyncio.Task[None], line: Line) -> bool:
        return task.done() or line.number in self._answered

    async def _finish(self) -> None:
        if self._state.completed + self._state.failed != self._state.total:
            raise RuntimeError(f"not every line of {self._spec.id} has one end: {self._state}")
        await self._note(replace(self._state, status="finalizing", finalizing_s=self._now_s()))
        files = await self._storage.call(self._publish)
        state = replace(self._state, status=self._end_status, output_file_id=files[0], error_file_id=files[1])
        if not await self._storage.call(self._claim.end, state):
            for id in files:
                if id is not None:
                    await self._storage.call(self._storage.files.delete, self._spec.tenant, id)
            raise ClaimLostError

    def _publish(self) -> tuple[str | None, str | None]:
        """Make files of the parts, those that have lines."""
        id, kept_s = self._spec.id, self._spec.output_kept_s
        output, errors = (self._claim.publish(part, f"{id}_{part}.jsonl", kept_s) for part in _PARTS)
        return output, errors

    # --- beside the work

    async def _watch(self) -> None:
        """Renew the claim, note progress, and stop the batch when it is cancelled or its window is over."""
        loop, pace = asyncio.get_running_loop(), self._storage.pace
        renewed_s = noted_s = loop.time()
        noted = self._state
        while True:
            await asyncio.sleep(pace.look_s)
            if loop.time() - renewed_s >= RENEW_S:
                if not await self._storage.call(self._claim.renew):
                    raise ClaimLostError
                renewed_s = loop.time()
            if not self._slots.stopped.is_set():
                await self._look()
            changed = self._state.status == "in_progress" and self._state is not noted
            if changed and loop.time() - noted_s >= pace.note_s:
                noted, noted_s = self._state, loop.time()
                await self._note(noted)
            elif not changed and self._rests():
                raise BatchPausedError

    async def _look(self) -> None:
        """See whether the batch is cancelled, expired, or paused; a pause does not delay the other two."""
        if await self._storage.call(self._claim.cancelled):
            self._stop("cancelled")
        elif self._now_s() >= self._spec.expires_s:
            self._stop("expired")
        elif await self._storage.call(self._claim.paused):
            self._slots.going_on.clear()
        else:
            self._slots.going_on.set()

    def _rests(self) -> bool:
        """Return whether only its pause keeps the batch from going on."""
        paused = not self._slots.going_on.is_set() and not self._slots.stopped.is_set()
        return paused and self._slots.wanted and not self._open

    def _stop(self, status: str) -> None:
        self._end_status = status
        self._slots.stop(_ENDS[status][1])

    # --- small parts

    def _checked(self) -> tuple[int, list[LineError]]:
        with self._claim.input() as file:
            lines_max, bytes_max = self._storage.limits.batch_lines_max, self._gateway.limits.body_bytes_max
            return check(file, self._spec.endpoint, lines_max, bytes_max)

    def _lines(self, file: BinaryIO) -> Iterator[Line]:
        for number, raw in raw_lines(file, self._gateway.limits.body_bytes_max):
            line = read_line(number, raw, self._spec.endpoint)
            assert isinstance(line, Line), line  # the file was checked, and does not change
            yield line

    def _unanswered(self, line: Line) -> Answered:
        return not_run(self._spec, line, *_ENDS[self._end_status])

    async def _write(self, found: Answered) -> None:
        part: Part = "output" if found.ok else "errors"
        async with self._writing:
            line = orjson.dumps(found.fields) + b"\n"
            await asyncio.shield(self._storage.call(self._claim.write, part, line))
            state = self._state
            completed, failed = state.completed + found.ok, state.failed + (not found.ok)
            self._state = replace(state, completed=completed, failed=failed)

    async def _note(self, state: BatchState) -> None:
        self._state = state
        await self._storage.call(self._claim.note, state)

    def _now_s(self) -> int:
        return self._gateway.clock.now_ns() // 10**9


def _next(lines: Iterator[Line]) -> list[Line]:
    return list(islice(lines, _READ))
