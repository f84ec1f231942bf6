"""Limits of media: section `media` of the configuration, but for the networks."""

from pydantic import BaseModel, ConfigDict, Field


class MediaLimits(BaseModel):
    """Images, sound and video in prompts.

    Attributes:
        bytes_max: Most bytes of a request's media together. Those in its body count, in base64, for
            `limits.body_bytes_max` too.
        items_max: Most media of a request.
        fetch: Fetch media that an `http:` or `https:` URL names; if false, only `data:` URLs are taken.
        timeout_s: Longest fetch, seconds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    bytes_max: int = Field(16 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024)
    items_max: int = Field(100, ge=1, le=10_000)
    fetch: bool = True
    timeout_s: float = Field(10.0, gt=0, le=60)
