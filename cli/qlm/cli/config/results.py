"""Sections `results` and `files` of the configuration: ended requests, files and batches that are kept."""

from pathlib import Path
from typing import Final

from pydantic import Field

from qlm.cli.config.section import ConfigSection
from qlm.gateway.files.limits import FileLimits
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
    """

    dir: Path | None = None
