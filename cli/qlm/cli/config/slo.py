"""Objectives (SLOs) in configuration and scenario files."""

from typing import Final, Self

from pydantic import model_validator

from qlm.cli.config.section import ConfigSection
from qlm.domain.slo import BatchSlo, DeadlineSlo, ReadingSlo, Slo, TokenSlo

SLO_FORMS: Final = (
    "expected deadline_ms, or ttft_ms with tpot_ms or tokens_per_s or neither, or nothing (batch)"
)


class SloConfig(ConfigSection):
    """One objective: a deadline, a first-token target with or without a pace, or nothing (batch).

    Times are from 0.01 ms to 30 days.

    Attributes:
        deadline_ms: Time from arrival to the end of the answer.
        ttft_ms: Time from arrival to the first token.
        tpot_ms: Time per token after the first one; together with `ttft_ms`.
        tokens_per_s: Reading speed after the first token, in place of `tpot_ms`.
    """

    deadline_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    tokens_per_s: float | None = None

    @model_validator(mode="after")
    def _one_objective(self) -> Self:
        given = self.model_fields_set & set(SloConfig.model_fields)
        if given - {"deadline_ms"} and given - {"ttft_ms", "tpot_ms"} and given - {"ttft_ms", "tokens_per_s"}:
            raise ValueError(f"has {sorted(given)}; {SLO_FORMS}")
        if given and not given & {"deadline_ms", "ttft_ms"}:
            raise ValueError(f"has {sorted(given)}; {SLO_FORMS}")
        self.slo()
        return self

    def slo(self) -> Slo:
        """Convert to an objective of the domain."""
        if self.deadline_ms is not None:
            return DeadlineSlo(deadline_ms=self.deadline_ms)
        if self.ttft_ms is None:
            return BatchSlo()
        if self.tokens_per_s is not None:
            return ReadingSlo(ttft_ms=self.ttft_ms, tokens_per_s=self.tokens_per_s)
        return TokenSlo(ttft_ms=self.ttft_ms, tpot_ms=self.tpot_ms)
