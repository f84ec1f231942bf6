"""Mistakes between the sections of a configuration, all of them at once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

from qlm.cli.config.addresses import check_address
from qlm.cli.config.section import twice
from qlm.domain.shown import without_password
from qlm.gateway.api.suggestions import meant

_EVERYWHERE: Final = ("", "0.0.0.0", "::")


class MistakesError(ValueError):
    """Several mistakes; each is the end of a sentence about the file."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = tuple(mistakes)


def mistakes_in_names(raw: Mapping[str, Any]) -> Iterator[str]:
    """Return what is wrong with the names in a configuration whose sections are not all sound."""
    models = _items(raw, "models")
    listed = raw.get("models")
    complete = isinstance(listed, list) and len(models) == len(listed)
    adapters = [each["id"] for model in models for each in _items(model, "adapters")]
    served = [
        (each["id"], [name for name in each.get("models") or () if isinstance(name, str)])
        for each in _items(raw, "instances")
        if isinstance(each.get("models"), list | None)
    ]
    names = [each["id"] for each in models]
    yield from twice("models", [*names, *adapters])
    yield from twice("instances", [each["id"] for each in _items(raw, "instances")])
    if names and complete:  # else an instance may mean the one whose name is wrong
        yield from unknown_models(names, served)


def unknown_models(known: Sequence[str], served: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Name models that instances serve and `models` does not have."""
    for instance, names in served:
        for name in dict.fromkeys(names):
            if name not in known:
                expected = f"expected one of {list(dict.fromkeys(known))}{meant(name, known)}"
                yield f"has the model {name!r} in instance {instance}; {expected}"


def _items(raw: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    listed = raw.get(key)
    items = listed if isinstance(listed, list) else []
    return [
        each for each in items if isinstance(each, Mapping) and isinstance(each.get("id"), str) and each["id"]
    ]


def shared_ports(listeners: Sequence[tuple[str, str, int]]) -> Iterator[str]:
    """Name listeners, given as name, host and port, that would have the same address; port 0 is none."""
    for (one, host, port), (other, other_host, other_port) in combinations(listeners, 2):
        overlap = host == other_host or {host, other_host} & set(_EVERYWHERE)
        if port and port == other_port and overlap:
            yield f"has the port {port} in {one} and in {other}; expected a port of its own for each"


def store_and_broker(store: str, broker: str) -> Iterator[str]:
    """Return what is wrong with the addresses of the shared state and the queue."""
    embedded = broker == "sqlite", store == "embedded"
    if any(embedded) != all(embedded):
        yield (
            f"has the broker {without_password(broker)!r} and the store {without_password(store)!r}; "
            "expected sqlite with embedded, or an amqp:// with a redis:// address"
        )
    elif not embedded[0]:
        for what, address, schemes in (
            ("broker", broker, ("amqp", "amqps")),
            ("store", store, ("redis", "rediss", "unix")),
        ):
            try:
                check_address(what, address, schemes)
            except ValueError as error:
                yield str(error)
