"""Section `ray` of the configuration: agents as actors of a Ray cluster."""

from collections.abc import Mapping
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from qlm.cli.config.section import ConfigSection
from qlm.domain.shown import shown

UNITS_MAX: Final = 1_000_000

ResourceName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^\S+$")]
Amount = Annotated[float, Field(gt=0, le=UNITS_MAX)]


class RayConfig(ConfigSection):
    """Ray cluster of the agents under `--runtime ray`.

    Attributes:
        address: `host:port` of a running Ray cluster, or `auto` for the one that this machine is a node of;
            without it, QLM starts its own Ray.
        namespace: Ray namespace of the actors; QLM clusters that share a Ray need one each.
        resources: Ray resources that an instance takes from its node, by kind of accelerator (`A100`, or
            `A100x2` with gpus 2); they replace the defaults.
    """

    address: str | None = None
    namespace: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = (
        "qlm"
    )
    resources: Mapping[str, Annotated[Mapping[ResourceName, Amount], Field(min_length=1)]] = {}

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.address is not None:
            check_ray_address(self.address)
        for kind, resources in self.resources.items():
            for name, amount in resources.items():
                if amount > 1 and amount != int(amount):
                    what = f"{amount:g} of {name} in resources.{kind}"
                    raise ValueError(f"has {what}; expected a part of one, or a whole number")
        return self


def check_ray_address(address: str) -> None:
    """Raise ValueError unless `address` can be that of a Ray cluster."""
    host, _, port = address.rpartition(":")
    sound = host and "/" not in host and port.isdecimal() and 0 < int(port) < 65536 and address.isprintable()
    if address != "auto" and not (sound and " " not in address):
        raise ValueError(
            f"has the address {shown(address)}; expected auto, or host:port of the cluster's head "
            "(Ray Client's ray:// does not do)"
        )
