"""A request inside the engine."""

from typing import Final

from qlm.simulator.engine.generation import Generation

NOT_DECODING: Final = -1


class Sequence:
    """How far a request has come.

    While it decodes, `computed` and `generated` stand still, and follow from `end`; see `DecodeSet`.

    Attributes:
        text: What it says.
        computed: Tokens in the KV cache.
        generated: Length of the answer so far.
        reported: Tokens of the answer that the driver knows of.
        cached: Prompt tokens found in a cache when it was first admitted.
        blocks: Its KV blocks.
        order: Number of its last admission; the batch is in this order.
        end: Number of the decode iteration that ends it.
        private: Nobody looks for its blocks; see `KvCache`.
        loading: Tokens that are on their way from host memory.
        ready_ns: When they will have arrived.
        call_id: Of the request.
    """

    __slots__ = (
        "blocks", "cached", "call_id", "computed", "end", "generated", "loading", "order", "private",
        "ready_ns", "reported", "text",
    )  # fmt: skip

    def __init__(self, text: Generation) -> None:
        self.text = text
        self.computed = 0
        self.generated = 0
        self.reported = 0
        self.cached: int | None = None
        self.blocks: list[int] = []
        self.order = 0
        self.end = NOT_DECODING
        self.private = False
        self.loading = 0
        self.ready_ns = 0
        self.call_id = text.call.call_id

    @property
    def tokens(self) -> int:
        """Length of prompt and answer so far."""
        return self.text.prompt_tokens + self.generated

    @property
    def missing(self) -> int:
        """Tokens to compute before the next one can be generated."""
        return self.text.prompt_tokens + self.generated - self.computed

    @property
    def ended(self) -> bool:
        """Whether it has given its last token and left the batch."""
        return self.generated == self.text.output_tokens
