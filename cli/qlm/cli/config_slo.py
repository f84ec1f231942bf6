"""Objectives in configuration files."""

from typing import Final, Self

from pydantic import BaseModel, ConfigDict, model_validator

from qlm.domain.slo import BatchSlo, DeadlineSlo, ReadingSlo, Slo, TokenSlo

SLO_FORMS: Final = (
    "expected deadline_ms, or ttft_ms with tpot_ms or tokens_per_s or neither, or nothing (batch)"
)


class SloConfig(BaseModel):
    """One objective: a deadline, or a first-token target with or without a pace, or none of them (batch).

    Times are from 0.01 ms to 30 days.

    Attributes:
        deadline_ms: The whole answer within this time of arrival.
        ttft_ms: The first token within this time of arrival.
        tpot_ms: Time per token after the first one; together with `ttft_ms`.
        tokens_per_s: Reading speed after the first token, in place of `tpot_ms`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

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
        """Turn it into an objective of the domain."""
        if self.deadline_ms is not None:
            return DeadlineSlo(deadline_ms=self.deadline_ms)
        if self.ttft_ms is None:
            return BatchSlo()
        if self.tokens_per_s is not None:
            return ReadingSlo(ttft_ms=self.ttft_ms, tokens_per_s=self.tokens_per_s)
        return TokenSlo(ttft_ms=self.ttft_ms, tpot_ms=self.tpot_ms)
