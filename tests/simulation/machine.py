"""Machine of one instance: memory, speed and engine failures."""

from collections import Counter
from collections.abc import Mapping

from qlm.domain.ids import ModelId, RequestId
from qlm.domain.lease import Holder
from simulation.history import History, ResidencyChanged, Stalled, StallOver, Started
from simulation.virtual_loop import VirtualLoop


class Machine:
    """Resources shared by all engines of one incarnation of an agent.

    Attributes:
        slowness: Factor on all durations of its engines.
        kv_blocks: KV blocks in use.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        history: History,
        holder: Holder,
        *,
        blocks_max: int,
        weights_bytes: Mapping[ModelId, int],
        host_memory_bytes: int,
        engine_failures: Counter[str],
    ) -> None:
        """Start empty.

        Args:
            loop: Source of time.
            history: Records loads, starts and memory use.
            holder: The agent.
            blocks_max: KV blocks per engine.
            weights_bytes: Size of each model.
            host_memory_bytes: Capacity for sleeping models.
            engine_failures: Number of next starts and wakes that fail; counted down.
        """
        self.slowness = 1.0
        self.kv_blocks = 0
        self._loop = loop
        self._history = history
        self._holder = holder
        self._blocks_max = blocks_max
        self._weights_bytes = weights_bytes
        self._host_memory_bytes = host_memory_bytes
        self._failures = engine_failures
        self._awake: dict[ModelId, None] = {}
        self._asleep: dict[ModelId, None] = {}

    @property
    def awake(self) -> ModelId | None:
        """The model of the awake engine, if any."""
        return next(iter(self._awake), None)

    def stalled(self, call_id: str) -> None:
        """Record that a generation stands still."""
        self._history.add(Stalled(self._loop.time(), self._holder.instance, call_id))
        self._history.coverage["engine stalled"] += 1

    def stall_over(self, call_id: str) -> None:
        """Record that a generation that stood still goes on, or has ended."""
        self._history.add(StallOver(self._loop.time(), call_id))

    def fails(self, step: str) -> bool:
        """Return whether this start or wake fails, and count it."""
        if self._failures[step] <= 0:
            return False
        self._failures[step] -= 1
        self._history.coverage[f"engine {step} failed"] += 1
        return True

    def changed(self, model: ModelId, *, awake: bool, asleep: bool) -> None:
        """Record that an engine is awake, asleep, or down."""
        for models, now in ((self._awake, awake), (self._asleep, asleep)):
            if now:
                models[model] = None
            else:
                models.pop(model, None)
        self._history.add(
            ResidencyChanged(
                self._loop.time(),
                self._holder.instance,
                tuple(self._awake),
                sum(self._weights_bytes[each] for each in self._asleep),
                self._host_memory_bytes,
            )
        )
        state = "awake" if awake else "asleep" if asleep else "down"
        self._history.coverage[f"engine {state}"] += 1

    def started(self, call_id: str, running: int, seqs_max: int, blocks: int) -> None:
        """Record the start of a generation, with the needs of all generations that are not being aborted."""
        id, now_s = RequestId(call_id.partition("-")[0]), self._loop.time()
        self._history.add(Started(now_s, self._holder, id, running, seqs_max, blocks, self._blocks_max))

    def take(self, blocks: int) -> bool:
        """Allocate KV blocks; return False and allocate none if too few are free."""
        if self.kv_blocks + blocks > self._blocks_max:
            self._history.coverage["engine preempted"] += 1
            return False
        self.kv_blocks += blocks
        return True

    def free(self, blocks: int) -> None:
        """Free KV blocks."""
        self.kv_blocks -= blocks
