"""Section `watchdog` of the configuration: the progress that engines must make."""

from pydantic import Field

from qlm.cli.config.section import ConfigSection


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

    silence_s: float = Field(8.0, ge=0, le=86_400)
    factor: float = Field(12.0, ge=1, le=1000)
    first_token_s: float = Field(60.0, ge=0, le=86_400)
    restarts_max: int = Field(3, ge=0, le=100)
    window_s: float = Field(600.0, gt=0, le=86_400)
    out_s: float = Field(1800.0, gt=0, le=86_400)
