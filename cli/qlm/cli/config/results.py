"""Sections `results` and `files` of the configuration: ended requests, files and batches that are kept."""

from typing import Final, Self

from pydantic import Field, model_validator

from qlm.cli.config.section import ConfigSection, WrittenPath
from qlm.gateway.files.limits import FileLimits
from qlm.gateway.files.s3.settings import COPY_BYTES_MAX, S3Settings
from qlm.store.core.limits import StoreLimits

_DEFAULT: Final = StoreLimits()


class ResultsConfig(ConfigSection):
    """Records and answers of ended requests in the shared state; all parts of a deployment need equal ones.

    Attributes:
        kept_max: Ended requests kept; the oldest are dropped first.
        kept_s: Time for which each is kept, seconds.
    """

    kept_max: int = Field(_DEFAULT.results_max, ge=1, le=100_000_000)
    kept_s: float = Field(_DEFAULT.result_ttl_s, ge=60, le=31_536_000)


class FilesConfig(FileLimits):
    """Files and batches of clients.

    Attributes:
        dir: Folder of files and batches, which all gateways of a deployment must share. Without it, `files`
            in `data_dir` with the embedded queue; with servers, none: there are no files then.
        s3: A bucket for them instead of a folder.
    """

    dir: WrittenPath | None = None
    s3: S3Settings | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.s3 is None:
            return self
        if self.dir is not None:
            raise ValueError("has dir and s3; expected one of them: files are in one place")
        if self.file_bytes_max > COPY_BYTES_MAX:
            raise ValueError(
                f"has file_bytes_max {self.file_bytes_max}; expected at most {COPY_BYTES_MAX} with s3"
            )
        return self
