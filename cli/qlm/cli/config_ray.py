"""The section `ray` of the configuration file: agents as actors of a Ray cluster."""

from collections.abc import Mapping
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qlm.domain.shown import shown

UNITS_MAX: Final = 1_000_000

ResourceName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^\S+$")]
Amount = Annotated[float, Field(gt=0, le=UNITS_MAX)]


class RayConfig(BaseModel):
    """Where agents run under `--runtime ray`.

    Attributes:
        address: `host:port` of a running Ray cluster, or `auto` for the one that this machine is a node of;
            none starts a Ray of our own.
        namespace: Ray's namespace of our actors; clusters of QLM that share a Ray have one each.
        resources: What an instance takes from its node, by kind of accelerator (`A100`, or `A100x2` with
            gpus 2), in place of what would be assumed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

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
    """Refuse what cannot be the address of a Ray cluster.

    Raises:
        ValueError: With the address and what was expected.
    """
    host, _, port = address.rpartition(":")
    sound = host and "/" not in host and port.isdecimal() and 0 < int(port) < 65536 and address.isprintable()
    if address != "auto" and not (sound and " " not in address):
        raise ValueError(
            f"has the address {shown(address)}; expected auto, or host:port of the cluster's head "
            "(Ray Client's ray:// does not do)"
        )
