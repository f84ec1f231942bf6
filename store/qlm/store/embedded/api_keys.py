"""API keys of the embedded store, in memory and as entries `api_key/<id>` of its journal."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from qlm.domain.errors import UndecodableDataError
from qlm.domain.formats.api_keys import by_age, decode_api_key
from qlm.domain.ports.api_keys import ApiKey

log = logging.getLogger("qlm.store")

_PREFIX: Final = "api_key/"


class MemoryApiKeys:
    """Part of `MemoryStore` with the API keys."""

    def __init__(self) -> None:
        super().__init__()
        self._api_keys: dict[str, ApiKey] = {}

    async def add_api_key(self, key: ApiKey) -> None:
        self._api_keys[key.id] = key

    async def api_keys(self) -> Sequence[ApiKey]:
        return sorted(self._api_keys.values(), key=by_age)

    async def remove_api_key(self, id: str) -> bool:
        return self._api_keys.pop(id, None) is not None


def api_key_entry(id: str) -> str:
    """Return the key of the journal's entry of an API key."""
    return f"{_PREFIX}{id}"


def journaled_api_keys(entries: Mapping[str, bytes]) -> dict[str, ApiKey]:
    """Return the API keys of a journal by id; one that cannot be read is good for nothing, and logged."""
    found = {}
    for name, data in entries.items():
        if not name.startswith(_PREFIX):
            continue
        try:
            key = decode_api_key(data)
        except UndecodableDataError as error:
            log.warning("the API key %s is not used: %s", name.removeprefix(_PREFIX), error)
        else:
            found[key.id] = key
    return found
