"""Durations of an engine by its profile: bounds for the watchdog, and the time that more tokens add."""

from dataclasses import dataclass

from qlm.rct_estimator.profiles.iteration import pairs_of
from qlm.rct_estimator.profiles.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeed:
    """Durations of an engine.

    Attributes:
        iteration_s: Longest iteration: full token budget at the end of the context beside a full KV cache.
        batched_tokens_max: Tokens of one iteration at most.
        answer_s: Time before a whole answer comes at once, of engines with a fixed latency.
        token_s: Time that one more prompt token adds to a large iteration, without attention.
        pair_s: Time per pair of tokens that its attention compares.
    """

    iteration_s: float = 0.0
    batched_tokens_max: int = 1 << 20
    answer_s: float = 0.0
    token_s: float = 0.0
    pair_s: float = 0.0

    @classmethod
    def of(cls, profile: Profile, *, time_scale: float = 1.0, answer_s: float = 0.0) -> "EngineSpeed":
        """Compute the bounds of a profile; `time_scale` is real seconds per second of the profile."""
        budget = min(profile.batched_tokens_max, profile.context_tokens)
        longest_ms = profile.iteration.ms(
            tokens=profile.batched_tokens_max,
            context_tokens=profile.kv_tokens,
            sequences=profile.seqs_max,
            pairs=pairs_of(budget, profile.context_tokens - budget),
            admitted=profile.seqs_max,
            mixed=True,
        )
        return cls(
            iteration_s=longest_ms / 1000 * time_scale,
            batched_tokens_max=profile.batched_tokens_max,
            answer_s=answer_s,
            token_s=profile.iteration.last_slope_ms / 1000 * time_scale,
            pair_s=profile.iteration.square_ms / 1000 * time_scale,
        )

    def added_s(self, tokens: int) -> float:
        """Return the time that a prompt of `tokens` tokens adds to iterations that run in any case."""
        return self.token_s * tokens + self.pair_s * pairs_of(tokens)

    def prompt_s(self, tokens: int) -> float:
        """Return a bound of the time to compute prompts of `tokens` tokens in total, and one more token."""
        return self.answer_s + self.iteration_s * (1 + -(-tokens // self.batched_tokens_max))


NO_SPEED = EngineSpeed()
"""Of an engine without a profile: only the fixed part of the allowance counts."""
