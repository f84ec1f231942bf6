"""Limits of files and batches: section `files` of the configuration, but for the folder."""

from pydantic import BaseModel, ConfigDict, Field


class FileLimits(BaseModel):
    """Limits of files and batches.

    Attributes:
        file_bytes_max: Largest file; beyond, 413.
        tenant_bytes_max: Bytes of all files of a tenant; beyond, 413.
        kept_s: Time for which files, and batches that have ended, are kept, seconds; a file may name its own.
        open_batches_max: Batches of a tenant that have not ended, paused ones included; beyond, 429.
        batch_lines_max: Most lines of a batch; a file with more fails its batch.
        lines_in_work_max: Lines of batches that a gateway has in the queue at a time. A number above what the
            engines run at once keeps them busy; a small one leaves the queue to other requests.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    file_bytes_max: int = Field(200 * 1024 * 1024, ge=1024, le=2**40)
    tenant_bytes_max: int = Field(10 * 1024**3, ge=1024, le=2**50)
    kept_s: int = Field(30 * 86_400, ge=3600, le=31_536_000)
    open_batches_max: int = Field(100, ge=1, le=100_000)
    batch_lines_max: int = Field(50_000, ge=1, le=1_000_000)
    lines_in_work_max: int = Field(256, ge=1, le=100_000)
