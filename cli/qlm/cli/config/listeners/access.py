"""Callers that the listeners of a process accept, and limits of their connections, by its configuration."""

from collections.abc import Callable
from typing import Final

from qlm.cli.config.addresses import VARIABLES
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.listeners.grpc import read_tls
from qlm.cli.config.settings import Config
from qlm.gateway.core.access import AccessRules, is_loopback
from qlm.gateway.core.connection_limits import ConnectionLimits
from qlm.gateway.http.connections.descriptors import allow_descriptors

RESERVED: Final = 512
"""Descriptors for all but connections of clients: queue, store, engines, operators, and clients that were
refused."""

OPERATORS_MAX: Final = 128
"""Connections of operators and probes, of whom there are few."""

OPERATORS_PER_ADDRESS_MAX: Final = 64
"""Those from one address, so that none takes all of them."""

ALL_ADDRESSES: Final = ("0.0.0.0/0", "::/0")


def check_listeners(config: Config, where: str, *, gateway: bool, monitor: bool) -> None:
    """Check the settings of a process's listeners.

    Args:
        config: The whole configuration.
        where: Its origin, for errors.
        gateway: Check those of a gateway.
        monitor: Check that of metrics in a process without a gateway.

    Raises:
        ConfigError: The certificate of the gRPC listener cannot be used, a listener for operators would be
            open to anyone, or the process may open too few files.
    """
    try:
        if gateway:
            connection_limits(config)
        if gateway and config.grpc.port:
            read_tls(config.grpc)
        if gateway and config.admin.port:
            _check_closed(config, "admin", config.admin.host)
        if monitor:
            _check_closed(config, "monitor", config.monitor.host)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _check_closed(config: Config, section: str, host: str) -> None:
    if config.admin.token is None and not is_loopback(host):
        raise ConfigError(
            f"{section}.host is {host!r} without an admin token; "
            f"expected a token in {VARIABLES['admin.token']}, or 127.0.0.1"
        )


def access_rules(config: Config) -> AccessRules:
    """Return the callers that the HTTP listener of the gateway accepts."""
    http = config.http
    return AccessRules(
        listens_on=http.host,
        hosts=http.allowed_hosts,
        origins=http.allowed_origins,
        keys_required=http.keys_required,
    )


def admin_rules(config: Config) -> AccessRules:
    """Return the callers that the gateway's listener for operators accepts."""
    admin = config.admin
    return AccessRules(listens_on=admin.host, hosts=admin.allowed_hosts, token=admin.token)


def grpc_rules(config: Config) -> AccessRules:
    """Return the callers that the gRPC listener of the gateway accepts."""
    return AccessRules(
        listens_on=config.grpc.host, token=config.admin.token, keys_required=config.http.keys_required
    )


def monitor_rules(config: Config) -> AccessRules:
    """Return the callers that the monitor of a process without a gateway accepts."""
    return AccessRules(listens_on=config.monitor.host, token=config.admin.token)


def exposures(config: Config) -> tuple[str, ...]:
    """Return a warning for each listener of the gateway that anyone beyond this machine may reach."""
    if config.http.behind_proxy or config.http.keys_required:
        return ()
    grpc = [("gRPC", config.grpc.host, config.grpc.port)] if config.grpc.port else []
    return tuple(
        f"the gateway listens for {what} on {host}:{port}, and QLM checks no client: all who reach the port "
        "can use it; set http.api_keys: required, listen on 127.0.0.1, or have a proxy or a network policy "
        "check clients and set http.behind_proxy: true"
        for what, host, port in (("HTTP", config.http.host, config.http.port), *grpc)
        if not is_loopback(host)
    )


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
    """Return the limits of a listener for operators, so that clients cannot take their connections."""
    fewer = {
        "connections_max": min(OPERATORS_MAX, limits.connections_max),
        "per_address_max": min(OPERATORS_PER_ADDRESS_MAX, limits.per_address_max),
    }
    return limits.model_copy(update=fewer)
