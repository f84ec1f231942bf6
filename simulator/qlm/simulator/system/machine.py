"""The machine of one instance: its memory, and what troubles it."""

from collections import Counter
from collections.abc import Mapping

from qlm.domain.ids import ModelId, RequestId
from qlm.domain.lease import Holder
from qlm.simulator.system.history import History, Resident, Started
from qlm.simulator.system.virtual_loop import VirtualLoop


class Machine:
    """What all engines of one life of an agent share.

    Attributes:
        slowness: Factor on all times of its engines.
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
        troubles: Counter[str],
    ) -> None:
        """Begin empty.

        Args:
            loop: The time.
            history: Notes what is loaded, started and used.
            holder: Whose machine it is.
            blocks_max: KV blocks of an engine.
            weights_bytes: Of each model.
            host_memory_bytes: For sleeping models.
            troubles: How many of the next starts and wakes fail; counted down.
        """
        self.slowness = 1.0
        self.kv_blocks = 0
        self._loop = loop
        self._history = history
        self._holder = holder
        self._blocks_max = blocks_max
        self._weights_bytes = weights_bytes
        self._host_memory_bytes = host_memory_bytes
        self._troubles = troubles
        self._awake: dict[ModelId, None] = {}
        self._asleep: dict[ModelId, None] = {}

    def fails(self, step: str) -> bool:
        """Whether this start or wake fails."""
        if self._troubles[step] <= 0:
            return False
        self._troubles[step] -= 1
        self._history.coverage[f"engine {step} failed"] += 1
        return True

    def changed(self, model: ModelId, *, awake: bool, asleep: bool) -> None:
        """Note that an engine is awake, asleep, or down."""
        for held, now in ((self._awake, awake), (self._asleep, asleep)):
            if now:
                held[model] = None
            else:
                held.pop(model, None)
        self._history.add(
            Resident(
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
        """Note that a generation begins, and what all of them need with it."""
        id, now_s = RequestId(call_id.partition("-")[0]), self._loop.time()
        self._history.add(Started(now_s, self._holder, id, running, seqs_max, blocks, self._blocks_max))

    def take(self, blocks: int) -> bool:
        """Use further KV blocks; False, and nothing is used, if there are not so many."""
        if self.kv_blocks + blocks > self._blocks_max:
            self._history.coverage["engine preempted"] += 1
            return False
        self.kv_blocks += blocks
        return True

    def free(self, blocks: int) -> None:
        """Use fewer KV blocks."""
        self.kv_blocks -= blocks
