"""Drives one engine model in virtual time: whole runs of iterations at once, cut when something arrives."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from qlm.domain.ports.engine import EngineCall
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.model import Chunk, Emission
from qlm.simulator.engine.run import Run
from qlm.simulator.world.timeline import Rank, Timeline

REPORT_ITERATIONS: Final = 16
"""Tokens in mid-answer reach the agent this often: the KV ledger is never more than a block behind, which
is what it keeps free for each request."""


Deliver = Callable[[Sequence[Emission], Sequence[Chunk]], None]
"""Told of what an iteration gave: first tokens and ends, and tokens in mid-answer."""


class EngineDriver:
    """One awake engine.

    Args:
        timeline: Virtual time.
        entity: Number of its instance.
        engine: The engine model.
        deliver: Told of what came out, in order.
        slowness: Factor on its times at present.
    """

    def __init__(
        self,
        timeline: Timeline,
        entity: int,
        engine: BatchingEngine,
        deliver: Deliver,
        slowness: Callable[[], float],
    ) -> None:
        self.engine = engine
        self._timeline = timeline
        self._entity = entity
        self._deliver = deliver
        self._slowness = slowness
        self._run: Run | None = None
        self._run_from_ns = 0
        self._run_slowness = 1.0
        self._iterations = 0
        self._version = 0
        self._starting = False
        self._since_report = 0
        self._aborting: dict[str, None] = {}
        self._dead = False

    def submit(self, call: EngineCall) -> None:
        """Take a request; it enters the batch with the next iteration that has room.

        Raises:
            InvalidValueError: The engine refuses it.
        """
        self.engine.add(call, self._timeline.now_ns)
        self._changed()

    def abort(self, call_ids: Iterable[str]) -> None:
        """End requests after the present iteration, as vLLM does; what they got until then counts."""
        for call_id in call_ids:
            self._aborting[call_id] = None
        self._changed()

    def kill(self) -> None:
        """Stop for good, in the middle of whatever it does."""
        self._dead = True
        self._version += 1

    def _changed(self) -> None:
        """Let the next iteration see what is new."""
        if self._run is not None and not self._run.iterations:
            # It only waits for KV blocks to be loaded: what is new need not.
            self._run = None
            self._version += 1
        if self._run is None:
            if not self._starting:
                self._starting = True
                self._timeline.at(self._timeline.now_ns, Rank.ENGINE, self._entity, self._start)
            return
        if self._iterations <= 1:
            return
        passed_ns = self._timeline.now_ns - self._run_from_ns
        at_ns = self._run_from_ns + math.floor(passed_ns / self._run_slowness)
        iterations = self._run.through(at_ns)
        if iterations < self._iterations:
            self._end_after(iterations)

    def _start(self, _: object) -> None:
        self._starting = False
        if not self._dead and self._run is None:
            self._next()

    def _next(self) -> None:
        """Begin what can be computed without a change of the batch."""
        if self._aborting:
            self._stop_aborted()
        now_ns = self._timeline.now_ns
        self._run = self.engine.plan(now_ns, REPORT_ITERATIONS - self._since_report)
        if self._run is not None:
            self._run_from_ns, self._run_slowness = now_ns, self._slowness()
            self._end_after(self._run.iterations)

    def _end_after(self, iterations: int) -> None:
        assert self._run is not None
        self._iterations = iterations
        self._version += 1
        lasts_ns = self._run.end_ns(iterations) - self._run_from_ns
        end_ns = self._run_from_ns + math.ceil(lasts_ns * self._run_slowness)
        end_ns = max(end_ns, self._timeline.now_ns)
        self._timeline.at(end_ns, Rank.ENGINE, self._entity, self._ended, self._version)

    def _ended(self, version: int) -> None:
        if version != self._version:
            return
        emissions = self.engine.commit(self._iterations)
        self._since_report += self._iterations
        self._run = None
        chunks: Sequence[Chunk] = ()
        if self._since_report >= REPORT_ITERATIONS or self._aborting:
            self._since_report = 0
            chunks = self.engine.collect()
        if emissions or chunks:
            self._deliver(emissions, chunks)
        if not self._dead and self._run is None and not self._starting:
            self._next()

    def _stop_aborted(self) -> None:
        stopped = [call_id for call_id in self._aborting if self.engine.abort(call_id)]
        self._aborting.clear()
        if stopped:
            self._deliver([Emission(call_id, (), "abort", None, 0) for call_id in stopped], ())
