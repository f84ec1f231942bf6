"""A request inside the engine."""

from dataclasses import dataclass, field
from typing import Final

from qlm.simulator.engine.generation import Generation

NOT_DECODING: Final = -1


@dataclass(slots=True, eq=False)
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

    text: Generation
    computed: int = 0
    generated: int = 0
    reported: int = 0
    cached: int | None = None
    blocks: list[int] = field(default_factory=list)
    order: int = 0
    end: int = NOT_DECODING
    private: bool = False
    loading: int = 0
    ready_ns: int = 0
    call_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.call_id = self.text.call.call_id

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
