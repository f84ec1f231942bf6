"""Limits of webhooks: section `webhooks` of the configuration, but for the endpoints."""

from pydantic import BaseModel, ConfigDict, Field


class WebhookLimits(BaseModel):
    """Limits of webhooks.

    Attributes:
        timeout_s: Longest attempt, seconds: from the look-up of the name to the status of the answer.
        retry_first_s: Longest pause after the first attempt that fails, seconds; it doubles with each.
        retry_max_s: Longest pause between two attempts, seconds.
        retry_for_s: Time after the end of a response or batch after which its event is given up, seconds.
        concurrent_max: Events that a gateway sends at a time.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    timeout_s: float = Field(10.0, gt=0, le=60)
    retry_first_s: float = Field(5.0, gt=0, le=3600)
    retry_max_s: float = Field(3600.0, gt=0, le=86_400)
    retry_for_s: float = Field(3 * 86_400.0, gt=0, le=2_592_000)
    concurrent_max: int = Field(64, ge=1, le=1000)
