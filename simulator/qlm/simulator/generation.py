"""One answer being generated: how long its text is so far, which token comes next, and when it ends."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.ports.engine import EngineCall
from qlm.simulator.token_chain import TokenChain, TokenSource, digests

STOP: Final = "stop"
LENGTH: Final = "length"
ABORT: Final = "abort"


@dataclass(slots=True, kw_only=True)
class Generation:
    """The text of one request, prompt and answer.

    Attributes:
        call: What was asked.
        source: Where its tokens come from.
        block_tokens: Tokens per KV block.
        context_tokens: Prompt plus answer at most.
        tokens: Length of prompt and answer so far.
        generated: Length of the answer so far.
        block_digests: Digest of all ids up to the end of each full block.
        stop_reason: The id that ended the answer, if the caller had named it as one that does.
    """

    call: EngineCall
    source: TokenSource
    block_tokens: int
    context_tokens: int
    tokens: int
    generated: int = 0
    block_digests: list[int] = field(default_factory=list)
    stop_reason: int | None = None

    def next_token(self) -> tuple[int, str | None]:
        """Append one token; return it and, if it is the last one, how the answer ended.

        The token that ends an answer is part of it, as in vLLM. Before `min_tokens`, tokens that
        would end it are not drawn.
        """
        sampling = self.call.sampling
        early = self.generated < sampling.min_tokens
        ends = (EOS_ID, *sampling.stop_token_ids) if early else (EOS_ID,) if sampling.ignore_eos else ()
        token_id = self.source.next_id(ends)
        self.tokens += 1
        self.generated += 1
        if self.tokens % self.block_tokens == 0:
            self.block_digests.append(self.source.digest)
        return token_id, self._finish(token_id)

    def _finish(self, token_id: int) -> str | None:
        sampling = self.call.sampling
        if self.generated >= sampling.min_tokens:
            if token_id == EOS_ID:
                return STOP
            if token_id in sampling.stop_token_ids:
                self.stop_reason = token_id
                return STOP
        if self.generated >= sampling.max_tokens or self.tokens >= self.context_tokens:
            return LENGTH
        return None


OpenGeneration = Callable[[EngineCall], Generation]
"""How an engine starts an answer: the one place that reads prompt ids."""


def hashed_generation(*, block_tokens: int, context_tokens: int, mean_output_tokens: float) -> OpenGeneration:
    """Let each token be a hash of all ids before it; see `token_chain`."""

    def start(call: EngineCall) -> Generation:
        *blocks, digest = digests(call.prompt_ids, block_tokens)
        return Generation(
            call=call,
            source=TokenChain(digest, call.prompt_ids[-1], mean_output_tokens),
            block_tokens=block_tokens,
            context_tokens=context_tokens,
            tokens=len(call.prompt_ids),
            block_digests=blocks,
        )

    return start
