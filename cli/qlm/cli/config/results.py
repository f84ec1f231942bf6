"""Section `results` of the configuration: the ended requests that stay known."""

from typing import Final

from pydantic import Field

from qlm.cli.config.section import ConfigSection
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
