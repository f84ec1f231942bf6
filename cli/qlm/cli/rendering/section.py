"""Section `media` of the configuration."""

from typing import Annotated

from pydantic import AfterValidator

from qlm.cli.config.addresses import check_network
from qlm.gateway.render.media.limits import MediaLimits


class MediaConfig(MediaLimits):
    """Images, sound and video in prompts.

    Attributes:
        allowed_networks: Networks, such as `10.1.0.0/16`, from which media may be fetched although they are
            private, loopback or link-local ones.
    """

    allowed_networks: tuple[Annotated[str, AfterValidator(check_network)], ...] = ()
