"""Addresses of RabbitMQ and Redis: taken from the environment if set, passwords never shown."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from qlm.cli.config.errors import ConfigError
from qlm.domain.shown import shown, without_password

VARIABLES: Final[Mapping[str, str]] = {"broker": "QLM_BROKER", "store": "QLM_STORE"}
"""Environment variable that replaces each key of the configuration file."""


def addresses(environment: Mapping[str, str]) -> dict[str, str]:
    """Read the keys that the environment replaces; raise ConfigError for an empty variable."""
    found = {key: environment[name] for key, name in VARIABLES.items() if name in environment}
    for key, address in found.items():
        if not address:
            raise ConfigError(
                f"{VARIABLES[key]} is empty; expected the address of the {key}, or no such variable"
            )
    return found


def with_origin(where: str, keys: Mapping[str, object]) -> str:
    """Name the file, and the environment variables that replaced some of its keys."""
    names = [VARIABLES[key] for key in keys]
    return f"{where} with {' and '.join(names)} of the environment" if names else where


def check_address(key: str, address: str, schemes: tuple[str, ...]) -> None:
    """Raise ValueError unless `address` can be that of a server with one of the schemes."""
    expected = f"an address such as {schemes[0]}://host:port"
    try:
        parts = urlsplit(address)
        sound = parts.scheme in schemes and parts.port != 0 and bool(parts.hostname or parts.scheme == "unix")
    except ValueError:
        sound = False
    if not sound or any(character <= " " for character in address):
        raise ValueError(f"has the {key} {shown(without_password(address))}; expected {expected}")
