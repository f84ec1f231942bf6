"""Limits of connections that a gateway can keep to: each connection takes a descriptor of its process."""

from collections.abc import Callable
from typing import Final

from qlm.cli.config.errors import ConfigError
from qlm.cli.config.settings import Config
from qlm.gateway.core.connection_limits import ConnectionLimits
from qlm.gateway.http.connections.descriptors import allow_descriptors

RESERVED: Final = 512
"""Descriptors for all but connections of clients: queue, store, engines, operators, and clients that were
refused."""

OPERATORS_MAX: Final = 64
"""Connections of operators, of whom there are few."""

ALL_ADDRESSES: Final = ("0.0.0.0/0", "::/0")


def connection_limits(
    config: Config, allow: Callable[[int], int] = allow_descriptors
) -> tuple[ConnectionLimits, str | None]:
    """Return the limits for each listener, with a warning if they are lower than configured.

    Args:
        config: The configuration.
        allow: Asks for a number of descriptors; returns how many the process may open.

    Raises:
        ConfigError: The process may open too few for any client.
    """
    limits = config.connections
    if config.http.behind_proxy:
        limits = limits.model_copy(update={"shared_addresses": ALL_ADDRESSES})
    listeners = 1 + bool(config.grpc.port)
    wanted = RESERVED + listeners * limits.connections_max
    allowed = allow(wanted)
    possible = (allowed - RESERVED) // listeners
    if possible >= limits.connections_max:
        return limits, None
    said = (
        f"connections.connections_max is {limits.connections_max}, and this process may open {allowed} files"
    )
    cure = f"set LimitNOFILE={wanted} in its unit, or run it after `ulimit -n {wanted}`"
    if possible < 1:
        raise ConfigError(f"{said}, too few for any; {cure}")
    warning = f"{said}, enough for {possible} connections on each listener; {cure}"
    return limits.model_copy(update={"connections_max": possible}), warning


def for_operators(limits: ConnectionLimits) -> ConnectionLimits:
    """Return the limits of the listener for operators, so that clients cannot take their connections."""
    return limits.model_copy(update={"connections_max": min(OPERATORS_MAX, limits.connections_max)})
