"""Driver of an engine model in virtual time: computes runs of iterations at once, cut at new calls."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from qlm.domain.ports.engine import EngineCall
from qlm.simulator.cluster.event_queue import EventQueue, Rank
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.model import Chunk, Emission
from qlm.simulator.engine.run import Run

REPORT_ITERATIONS: Final = 16
"""Iterations between reports of intermediate tokens to the agent. Its KV ledger is then at most one block
behind, which it keeps free for each request."""

OnOutput = Callable[[Sequence[Emission], Sequence[Chunk]], None]
"""Receives the output of an iteration: ends, first tokens (also after a preemption), and the others."""


class EngineDriver:
    """One awake engine.

    Args:
        entity: Number of its instance.
        request_ns: Time from the engine to its client, by which each output is later (`Profile.request_ms`).
        slowness: Returns the current factor on its durations.
    """

    def __init__(
        self,
        event_queue: EventQueue,
        entity: int,
        engine: BatchingEngine,
        on_output: OnOutput,
        slowness: Callable[[], float],
        request_ns: int = 0,
    ) -> None:
        self.engine = engine
        self._event_queue = event_queue
        self._entity = entity
        self._on_output = on_output
        self._slowness = slowness
        self._request_ns = request_ns
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
        """Add a request; it joins the batch at the next iteration with capacity for it.

        Raises:
            InvalidValueError: The engine refuses it.
        """
        self.engine.add(call, self._event_queue.now_ns)
        self._changed()

    def abort(self, call_ids: Iterable[str]) -> None:
        """Abort requests after the current iteration, as vLLM does; tokens generated until then count."""
        for call_id in call_ids:
            self._aborting[call_id] = None
        self._changed()

    def change_pace(self) -> None:
        """Take the present slowness from the next iteration on."""
        self._changed()

    def kill(self) -> None:
        """Stop at once and for good."""
        self._dead = True
        self._version += 1

    def _changed(self) -> None:
        """End the current run at the next iteration, so that the engine sees the change."""
        if self._run is not None and not self._run.iterations:
            # The run only waits for KV blocks to be loaded; a new request need not wait for them.
            self._run = None
            self._version += 1
        if self._run is None:
            if not self._starting:
                self._starting = True
                self._event_queue.schedule(self._event_queue.now_ns, Rank.ENGINE, self._entity, self._start)
            return
        if self._iterations <= 1:
            return
        passed_ns = self._event_queue.now_ns - self._run_from_ns
        at_ns = self._run_from_ns + math.floor(passed_ns / self._run_slowness)
        iterations = self._run.through(at_ns)
        if iterations < self._iterations:
            self._end_after(iterations)

    def _start(self, _: object) -> None:
        self._starting = False
        if not self._dead and self._run is None:
            self._start_run()

    def _start_run(self) -> None:
        """Start a run: the iterations until the batch changes."""
        if self._aborting:
            self._stop_aborted()
        now_ns = self._event_queue.now_ns
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
        end_ns = max(end_ns, self._event_queue.now_ns)
        self._event_queue.schedule(end_ns, Rank.ENGINE, self._entity, self._end_run, self._version)

    def _end_run(self, version: int) -> None:
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
            self._start_run()

    def _stop_aborted(self) -> None:
        stopped = [call_id for call_id in self._aborting if self.engine.abort(call_id)]
        self._aborting.clear()
        if stopped:
            self._deliver([Emission(call_id, (), "abort", None, 0) for call_id in stopped], ())

    def _deliver(self, emissions: Sequence[Emission], chunks: Sequence[Chunk]) -> None:
        if not self._request_ns:
            self._on_output(emissions, chunks)
            return
        at_ns = self._event_queue.now_ns + self._request_ns
        self._event_queue.schedule(at_ns, Rank.ENGINE, self._entity, self._delivered, (emissions, chunks))

    def _delivered(self, output: tuple[Sequence[Emission], Sequence[Chunk]]) -> None:
        if not self._dead:
            self._on_output(*output)
