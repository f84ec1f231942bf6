"""Keys with secrets: addresses of RabbitMQ and Redis, the admin token; variables with secrets.

The environment has precedence over the file.
"""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel

from qlm.cli.config.errors import ConfigError
from qlm.domain.formats.server_address import is_host
from qlm.domain.shown import shown, without_password

VARIABLES: Final[Mapping[str, str]] = {
    "broker": "QLM_BROKER",
    "store": "QLM_STORE",
    "admin.token": "QLM_ADMIN_TOKEN",
}
"""Environment variable that replaces each key of the configuration file."""

NAMING: Final = "_env"
"""End of the keys that name a variable of the environment with a secret."""


def secret_variables(section: BaseModel) -> frozenset[str]:
    """Return the names of all variables with secrets that a configuration names."""
    return frozenset(_named(section))


def _named(value: object) -> Iterator[str]:
    if isinstance(value, BaseModel):
        for key, inner in value:
            if key.endswith(NAMING) and isinstance(inner, str):
                yield inner
            else:
                yield from _named(inner)
    elif isinstance(value, Mapping):
        yield from _named(tuple(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            yield from _named(inner)


def of_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Read the keys that the environment replaces; raise ConfigError for an empty variable."""
    found: dict[str, Any] = {}
    for path, name in VARIABLES.items():
        if environment.get(name) == "":
            raise ConfigError(f"{name} is empty; expected a value of {path}, or no such variable")
        if name in environment:
            key, _, inner = path.partition(".")
            found[key] = {inner: environment[name]} if inner else environment[name]
    return found


def merged(keys: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys of a file with those of another origin, which replace or extend its sections."""
    joined = dict(keys)
    for key, value in over.items():
        inner = joined.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            joined[key] = {**inner, **value}
        else:
            joined[key] = value
    return joined


def with_origin(where: str, given: Mapping[str, object]) -> str:
    """Name the file, and the environment variables that replaced some of its keys."""
    names = [name for path, name in VARIABLES.items() if path.partition(".")[0] in given]
    return f"{where} with {' and '.join(names)} of the environment" if names else where


def check_address(key: str, address: str, schemes: tuple[str, ...]) -> None:
    """Raise ValueError unless `address` can be that of a server with one of the schemes."""
    expected = f"an address such as {schemes[0]}://host:port"
    try:
        parts = urlsplit(address)
        host = (parts.hostname or "").encode("idna")  # as the look-up of the name will encode it
        sound = parts.scheme in schemes and parts.port != 0 and bool(host or parts.scheme == "unix")
    except ValueError:
        sound = False
    if not sound or any(character <= " " for character in address):
        raise ValueError(f"has the {key} {shown(without_password(address))}; expected {expected}")


def check_host(text: str) -> str:
    """Return a text that can be the host of a listener.

    Raises:
        ValueError: It cannot.
    """
    if not is_host(text):
        raise ValueError(f"is {shown(text)}; expected an address or a name of this machine")
    return text


ListeningHost = Annotated[str, AfterValidator(check_host)]
"""Host of a listener."""


def check_network(text: str) -> str:
    """Return a text that is a network.

    Raises:
        ValueError: It is none.
    """
    try:
        ip_network(text)
    except ValueError as error:
        raise ValueError(f"is {shown(text)}; expected a network such as 10.1.0.0/16 ({error})") from error
    return text
