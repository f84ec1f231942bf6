"""Request inside an engine."""

from typing import Final

from qlm.simulator.engine.generation import Generation

NOT_DECODING: Final = -1


class Sequence:
    """Progress of a request.

    While it decodes, `computed` and `generated` are not updated; they follow from `end` (see `DecodeSet`).

    Attributes:
        generation: Prompt and answer.
        computed: Tokens in the KV cache.
        generated: Length of the answer so far.
        reported: Tokens of the answer reported to the driver.
        cached: Prompt tokens found in a cache at its first admission.
        order: Number of its last admission; the order of the batch.
        end: Number of the decode iteration that generates its last token, as `DecodeSet` counts them; or
            NOT_DECODING.
        private: Its blocks are not indexed; see `KvCache`.
        loading: Tokens in transit from host memory.
        ready_ns: Time of their arrival; of an evicted sequence, when host memory has its blocks.
        pinned: A batch policy may not preempt it.
        position: Place in the order of a batch policy; what comes last is given up first.
        row: Number in the table of a batch policy's host.
    """

    __slots__ = (
        "_had", "blocks", "cached", "call_id", "computed", "end", "generated", "generation", "loading",
        "order", "pinned", "position", "private", "ready_ns", "reported", "row",
    )  # fmt: skip

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.computed = 0
        self._had = 0
        self.generated = 0
        self.reported = 0
        self.cached: int | None = None
        self.blocks: list[int] = []
        self.order = 0
        self.end = NOT_DECODING
        self.private = False
        self.loading = 0
        self.ready_ns = 0
        self.pinned = False
        self.position = 0
        self.row = 0
        self.call_id = generation.call.call_id

    @property
    def tokens(self) -> int:
        """Present length of prompt and answer."""
        return self.generation.prompt_tokens + self.generated

    @property
    def missing(self) -> int:
        """Tokens to compute before the next one can be generated."""
        return self.generation.prompt_tokens + self.generated - self.computed

    @property
    def ended(self) -> bool:
        """True if it has its last token and has left the batch."""
        return self.generated == self.generation.output_tokens

    def lose_blocks(self) -> None:
        """Note that its KV is no longer in the cache."""
        self._had = self.had(self.computed)
        self.computed = self.loading = 0

    def had(self, computed: int) -> int:
        """Return the most tokens that it ever had in the KV cache, or in transit to it.

        Args:
            computed: Tokens that it has there now, also while it decodes.
        """
        return max(self._had, computed + self.loading)
