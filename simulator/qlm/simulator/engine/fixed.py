"""Engine with a fixed latency for every request: the floor for benchmarks."""

from collections import deque

from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall
from qlm.simulator.engine.generation import Generation, OpenGeneration
from qlm.simulator.engine.model import Emission, EngineCounters, StepResult


class FixedLatencyEngine:
    """Engine that answers each request whole, a fixed time after its arrival, with no batch limit."""

    def __init__(self, capacity: EngineCapacity, start: OpenGeneration, *, latency_ns: int) -> None:
        """Start empty.

        Args:
            capacity: Reported limits; only the context limit is enforced.
            start: Makes the tokens of a request.
            latency_ns: Time from a request to its answer; positive.
        """
        if latency_ns <= 0:
            raise InvalidValueError("latency_ns", latency_ns, "a positive number")
        self.capacity = capacity
        self.counters = EngineCounters()
        self._start = start
        self._latency_ns = latency_ns
        self._pending: deque[tuple[int, Generation]] = deque()
        self._in_flight: dict[str, Generation] = {}
        self._known: set[str] = set()
        self._asleep = False

    @property
    def running(self) -> int:
        """Unanswered requests."""
        return len(self._pending) + len(self._in_flight)

    @property
    def waiting(self) -> int:
        """0: no request waits."""
        return 0

    @property
    def kv_usage(self) -> float:
        """0: there is no KV cache."""
        return 0.0

    def add(self, call: EngineCall, now_ns: int) -> None:
        """Add a request, to be answered at `now_ns` plus the latency."""
        if not 0 < len(call.prompt_ids) < self.capacity.context_tokens:
            raise InvalidValueError(
                "prompt", f"{len(call.prompt_ids)} tokens", f"1 to {self.capacity.context_tokens - 1} tokens"
            )
        if call.call_id in self._known:
            raise InvalidValueError("call_id", call.call_id, "an id that is not in use")
        self._known.add(call.call_id)
        self._pending.append((now_ns + self._latency_ns, self._start(call)))
        self.counters.prompt_tokens += len(call.prompt_ids)

    def abort(self, call_id: str) -> bool:
        """Forget a request."""
        if call_id not in self._known:
            return False
        self._known.discard(call_id)
        self._in_flight.pop(call_id, None)
        self._pending = deque(p for p in self._pending if p[1].call.call_id != call_id)
        return True

    def sleep(self) -> None:
        """Stop to answer."""
        self._asleep = True

    def wake(self) -> None:
        """Resume; overdue answers come at once."""
        self._asleep = False

    def step(self, now_ns: int) -> StepResult | None:
        """Wait until the oldest request's answer is due, and answer all that are due then."""
        self._known.difference_update(self._in_flight)
        self._in_flight.clear()
        if self._asleep or not self._pending:
            return None
        end_ns = max(now_ns + 1, self._pending[0][0])
        emissions = []
        while self._pending and self._pending[0][0] <= end_ns:
            _due_ns, generation = self._pending.popleft()
            self._in_flight[generation.call.call_id] = generation
            emissions.append(self._answer(generation))
        return StepResult(end_ns - now_ns, tuple(emissions))

    def _answer(self, generation: Generation) -> Emission:
        tokens = generation.output_tokens
        self.counters.generation_tokens += tokens
        return Emission(
            generation.call.call_id,
            generation.token_ids(0, tokens),
            generation.finish,
            generation.stop_reason,
            0,
        )
