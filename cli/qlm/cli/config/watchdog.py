"""Section `watchdog` of the configuration: the progress that engines must make."""

from typing import Final

from pydantic import Field

from qlm.agents.core.stats.progress import WatchSettings
from qlm.cli.config.section import ConfigSection

_DEFAULT: Final = WatchSettings()


class WatchdogConfig(ConfigSection):
    """Watchdog of the engines' progress: an engine without a token for too long while it works is restarted.

    Attributes:
        silence_s: Fixed part of the time for which an engine may be silent, seconds; 0 for no watchdog.
        factor: Multiple of the longest time by its profile for what it computes, added to that.
        first_token_s: Further time until the first token of an engine that was just brought up, seconds.
        restarts_max: Restarts within `window_s` after which an engine is taken out of service.
        window_s: Time for which a restart counts, seconds.
        out_s: Time out of service, after which the engine is started again, seconds.
    """

    silence_s: float = Field(_DEFAULT.silence_s, ge=0, le=86_400)
    factor: float = Field(_DEFAULT.factor, ge=1, le=1000)
    first_token_s: float = Field(_DEFAULT.first_token_s, ge=0, le=86_400)
    restarts_max: int = Field(_DEFAULT.restarts_max, ge=0, le=100)
    window_s: float = Field(_DEFAULT.window_s, gt=0, le=86_400)
    out_s: float = Field(_DEFAULT.out_s, gt=0, le=86_400)
