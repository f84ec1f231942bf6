"""Sampling parameters, and the exactness of a resume after a preemption that follows from them."""

from dataclasses import dataclass, replace
from enum import StrEnum
from zlib import crc32

from qlm.domain.ids import TokenIds


class Evictability(StrEnum):
    """Permission to preempt a running request and resume it from its logged tokens.

    Source: the mechanisms of vLLM 0.32 on resubmission of prompt + generated ids.
    """

    FREE = "free"
    """Resumes as if never interrupted (greedy, or unseeded sampling)."""
    APPROX = "approx"
    """Resumes with the same distribution but not the same random stream (seeded sampling)."""
    PINNED = "pinned"
    """Cannot be resumed exactly (penalties over generated text, a grammar): never preempted.

    If its engine is lost, it is generated again from the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters of one request, in the engine's terms; defaults are those of vLLM."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    stop_token_ids: TokenIds = ()
    eos_token_ids: TokenIds = ()
    """End-of-sequence ids of the model; an agent that resumes a request needs them, as the engine does."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str = ""
    """Constraint on the output, as JSON text of fields for the engine: vLLM's `structured_outputs`, and for a
    model that reasons `reasoning_ended` and `reasoning_parser_kwargs`; empty for none."""
    adapter: str = ""
    """LoRA adapter of the model that answers, by its name at the engine; empty for the model itself."""
    media: str = ""
    """Digest of the images, sound and video of the prompt (`formats.media`), which the store has under the id
    of the request; empty without any."""

    @property
    def evictability(self) -> Evictability:
        """Derive it from the parameters."""
        # An engine begins a grammar anew behind the prompt, so it would not continue what was generated.
        if self.frequency_penalty or self.presence_penalty or self.grammar:
            return Evictability.PINNED
        if self.seed is not None and self.temperature > 0:
            return Evictability.APPROX
        return Evictability.FREE

    def repeatable(self, id: str) -> "Sampling":
        """Return the parameters with a seed, if tokens are drawn: by default one that follows from `id`."""
        if self.seed is not None or not self.temperature:
            return self
        return replace(self, seed=crc32(id.encode()))

    def ends_with(self, token_id: int) -> bool:
        """Return True if this token ends an answer."""
        return token_id in self.stop_token_ids or (not self.ignore_eos and token_id in self.eos_token_ids)

    def after(self, generated_tokens: int) -> "Sampling":
        """Return the parameters of a resume after `generated_tokens`, which reduce the token limits."""
        if not generated_tokens:
            return self
        return replace(
            self,
            max_tokens=self.max_tokens - generated_tokens,
            min_tokens=max(0, self.min_tokens - generated_tokens),
        )
