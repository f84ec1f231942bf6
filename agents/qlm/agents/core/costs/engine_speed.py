"""Slowest iteration of an engine by its profile: the yardstick of the watchdog."""

from dataclasses import dataclass

from qlm.rct_estimator.profiles.iteration import pairs_of
from qlm.rct_estimator.profiles.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeed:
    """Upper bounds of an engine's durations.

    Attributes:
        iteration_s: Longest iteration: full token budget at the end of the context beside a full KV cache.
        batched_tokens_max: Tokens of one iteration at most.
        answer_s: Time before a whole answer comes at once, of engines with a fixed latency.
    """

    iteration_s: float = 0.0
    batched_tokens_max: int = 1 << 20
    answer_s: float = 0.0

    @classmethod
    def of(cls, profile: Profile, *, time_scale: float = 1.0, answer_s: float = 0.0) -> "EngineSpeed":
        """Compute the bounds of a profile; `time_scale` is real seconds per second of the profile."""
        budget = min(profile.batched_tokens_max, profile.context_tokens)
        longest_ms = profile.iteration.ms(
            tokens=profile.batched_tokens_max,
            context_tokens=profile.kv_tokens,
            sequences=profile.seqs_max,
            pairs=pairs_of(budget, profile.context_tokens - budget),
            mixed=True,
        )
        return cls(
            iteration_s=longest_ms / 1000 * time_scale,
            batched_tokens_max=profile.batched_tokens_max,
            answer_s=answer_s,
        )

    def prompt_s(self, tokens: int) -> float:
        """Return a bound of the time to compute prompts of `tokens` tokens in total, and one more token."""
        return self.answer_s + self.iteration_s * (1 + -(-tokens // self.batched_tokens_max))


NO_SPEED = EngineSpeed()
"""Of an engine without a profile: only the fixed part of the allowance counts."""
