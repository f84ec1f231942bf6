"""Answers whose length the simulator knows from the start; the parts that it simulates do not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import TokenIds
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.domain.values import value
from qlm.simulator.engine.answers.constrained import constrained_ids
from qlm.simulator.engine.token_chain import TokenChain, digests, fold

STOP: Final = "stop"
LENGTH: Final = "length"
ABORT: Final = "abort"

SCRIPTED_ID: Final = 0
"""Token id of scripted answers, but for the EOS at their end."""
PREFIX_TOKENS: Final = 512
"""Prompt tokens per id of a shared prefix, as in the traces of Mooncake."""


@dataclass(slots=True, kw_only=True, eq=False)
class Generation:
    """Text of one request, prompt and answer.

    Attributes:
        output_tokens: Length of the answer in this call, with the token that ends it; 1 or more.
        finish: `stop` or `length`.
        tokens: Length of prompt and answer.
        digests: Digest of all ids up to the end of each full KV block; equal for equal ids.
        family: Texts of different families share no block that is filled during decoding.
        shared: Number of its leading blocks that may occur in texts of other families.
        limited: Its last token is the last that `max_tokens` or the context allows, which an engine knows
            before it is computed.
        stop_reason: The id that ends the answer, if it is one of the request's stop ids.
        ids: The answer; None if it is scripted.
    """

    call: EngineCall
    prompt_tokens: int
    output_tokens: int
    finish: str
    digests: Sequence[int]
    family: int = 0
    shared: int = 0
    limited: bool = False
    stop_reason: int | None = None
    ids: Sequence[int] | None = None
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = self.prompt_tokens + self.output_tokens

    def token_ids(self, start: int, end: int) -> tuple[int, ...]:
        """Return the tokens of the answer from number `start` to before number `end`."""
        if self.ids is not None:
            return tuple(self.ids[start:end])
        if end == self.output_tokens and self.finish == STOP:
            return (SCRIPTED_ID,) * (end - start - 1) + (EOS_ID,)
        return (SCRIPTED_ID,) * (end - start)


OpenGeneration = Callable[[EngineCall], Generation]
"""Makes the answer to a request; the only place that reads prompt ids."""


@value
class Script:
    """Known length and content of a text.

    Attributes:
        output_tokens: Tokens of the answer that remain in this call, with the one that ends it.
        base: Block i of the text has the digest `base` + i in every call, so bases of different texts must
            lie further apart than their numbers of blocks. Not negative.
        finish: End of the answer, unless a limit of the request ends it earlier.
        prefix_ids: For each 512 tokens of the first prompt, an id of these and all tokens before them.
        prefix_tokens: Tokens covered by `prefix_ids`; after a resume still those of the first prompt.
    """

    output_tokens: int
    base: int
    finish: str = STOP
    prefix_ids: Sequence[int] = ()
    prefix_tokens: int = 0

    def __post_init__(self) -> None:
        if self.output_tokens < 1:
            raise InvalidValueError("script.output_tokens", self.output_tokens, "at least 1")
        if self.base < 0:
            raise InvalidValueError("script.base", self.base, "not negative")
        if not 0 <= self.prefix_tokens <= len(self.prefix_ids) * PREFIX_TOKENS:
            limit = len(self.prefix_ids) * PREFIX_TOKENS
            raise InvalidValueError("script.prefix_tokens", self.prefix_tokens, f"0 to {limit}")


def scripted_generation(
    length_of: Callable[[EngineCall], Script], *, block_tokens: int, context_tokens: int
) -> OpenGeneration:
    """Make answers of scripted lengths, within the limits of their requests.

    The limits are those of sampled answers: an answer ends after `min_tokens`, never if EOS is ignored, and
    with `length` at `max_tokens` or the end of the context. Of prompt ids, only the number matters.
    """

    def start(call: EngineCall) -> Generation:
        script, prompt_tokens = length_of(call), len(call.prompt_ids)
        limit = _limit(call.sampling, prompt_tokens, context_tokens)
        natural = limit + 1 if call.sampling.ignore_eos else script.output_tokens
        if call.sampling.min_tokens:
            natural = max(natural, call.sampling.min_tokens + 1)
        output_tokens = natural if natural < limit else limit
        return Generation(
            call=call,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            finish=script.finish if natural <= limit else LENGTH,
            digests=_scripted_digests(script, (prompt_tokens + output_tokens) // block_tokens, block_tokens),
            family=script.base,
            shared=script.prefix_tokens // block_tokens,
            limited=output_tokens == limit,
        )

    return start


def hashed_generation(*, block_tokens: int, context_tokens: int, mean_output_tokens: float) -> OpenGeneration:
    """Make answers whose tokens are hashes of all ids before them; see `token_chain`."""
    # An answer is drawn whole at its start. That is the same work in total, but wasted for tokens that an
    # abort cuts off.

    def start(call: EngineCall) -> Generation:
        *blocks, digest = digests(call.prompt_ids, block_tokens, call.sampling.adapter)
        source = TokenChain(digest, call.prompt_ids, mean_output_tokens)
        tokens = len(call.prompt_ids)
        limit = _limit(call.sampling, tokens, context_tokens)
        ids: list[int] = []
        finish: tuple[str, int | None] | None = None
        constrained = _constrained(call, digest, mean_output_tokens)
        while finish is None:
            if len(ids) < len(constrained):
                source.digest = fold(source.digest, token_id := constrained[len(ids)])
            else:
                token_id = source.next_id(_forbidden(call.sampling, len(ids)))
            ids.append(token_id)
            if (tokens + len(ids)) % block_tokens == 0:
                blocks.append(source.digest)
            finish = _finish(call.sampling, token_id, len(ids), limit)
        return Generation(
            call=call, prompt_tokens=tokens, output_tokens=len(ids), finish=finish[0], digests=blocks,
            shared=len(blocks), limited=len(ids) == limit, stop_reason=finish[1], ids=ids,
        )  # fmt: skip

    return start


def _constrained(call: EngineCall, digest: int, mean_output_tokens: float) -> TokenIds:
    """Return the answer to a request with a grammar; nothing without one."""
    if not call.sampling.grammar:
        return ()
    return constrained_ids(call.sampling.grammar, TokenChain(digest, call.prompt_ids, mean_output_tokens))


def _limit(sampling: Sampling, prompt_tokens: int, context_tokens: int) -> int:
    """Return the most tokens of the answer; a request for none gets one."""
    limit, room = sampling.max_tokens, context_tokens - prompt_tokens
    if room < limit:
        limit = room
    return limit if limit > 1 else 1


def _forbidden(sampling: Sampling, generated: int) -> tuple[int, ...]:
    """Return the ids that may not be drawn now: those that end an answer, before `min_tokens`."""
    if generated < sampling.min_tokens:
        return (EOS_ID, *sampling.stop_token_ids)
    return (EOS_ID,) if sampling.ignore_eos else ()


def _finish(sampling: Sampling, token_id: int, generated: int, limit: int) -> tuple[str, int | None] | None:
    """Return finish and stop id if this token, number `generated`, ends the answer; else None.

    The token that ends an answer is part of it, as in vLLM.
    """
    if generated >= sampling.min_tokens:
        if token_id == EOS_ID:
            return STOP, None
        if token_id in sampling.stop_token_ids:
            return STOP, token_id
    return (LENGTH, None) if generated >= limit else None


def _scripted_digests(script: Script, blocks: int, block_tokens: int) -> Sequence[int]:
    """Return the digests of blocks; those of a shared prefix are negative, apart from all bases."""
    if script.prefix_tokens < block_tokens:
        return range(script.base, script.base + blocks)
    shared = min(blocks, script.prefix_tokens // block_tokens)
    own = range(script.base + shared, script.base + blocks)
    each = -(-PREFIX_TOKENS // block_tokens)
    ids = (script.prefix_ids[(end * block_tokens - 1) // PREFIX_TOKENS] for end in range(1, shared + 1))
    return [*(-1 - one * each - block % each for block, one in enumerate(ids)), *own]
