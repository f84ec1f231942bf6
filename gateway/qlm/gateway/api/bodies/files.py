"""Bodies of the routes of files and batches."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

LIFETIME_MIN_S: Final = 3600
"""Shortest lifetime of a file that names its own."""

METADATA_MAX: Final = 16
METADATA_KEY_CHARACTERS_MAX: Final = 64
METADATA_CHARACTERS_MAX: Final = 512


class Lifetime(BaseModel):
    """A lifetime of a file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # From when it counts.
    anchor: Literal["created_at"]
    # Its length; at most `files.kept_s`.
    seconds: Annotated[int, Field(ge=LIFETIME_MIN_S)]


class FileForm(BaseModel):
    """A file to keep, as a form; `expires_after[anchor]` and `expires_after[seconds]` name its lifetime."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # The file with its name; at most `files.file_bytes_max` bytes.
    file: str
    # What it is for.
    purpose: Literal["batch"]


class BatchBody(BaseModel):
    """A batch to run."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # The file with its lines.
    input_file_id: str
    # The route of all its lines.
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
    # Time for all answers, such as `30m`, `24h` or `7d`: from one minute to 30 days.
    completion_window: str
    # Notes of its client: at most 16 texts of at most 512 characters, with keys of at most 64.
    metadata: dict[str, str] | None = None
    # Lifetime of its output; without it, `files.kept_s`.
    output_expires_after: Lifetime | None = None
