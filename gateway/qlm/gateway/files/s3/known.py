"""JSON of objects that never change, many at a time, each fetched once."""

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import Any, Final

from qlm.gateway.files.s3.bucket import Bucket
from qlm.gateway.files.threads import DaemonThreads

KEPT_MAX: Final = 10_000
_AT_ONCE: Final = 8


class KnownJson:
    """The JSON of objects that are written once; the ones used last are kept in memory."""

    def __init__(self, bucket: Bucket) -> None:
        """Know nothing yet."""
        self._bucket = bucket
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._lock = Lock()
        self._threads = DaemonThreads(_AT_ONCE, "qlm-s3-json")

    def get(self, key: str) -> Any:
        """Return the JSON of an object that was in a list; None if it is gone."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = self._bucket.get_json(key)
        if found is not None:
            with self._lock:
                self._kept[key] = found
                while len(self._kept) > KEPT_MAX:
                    self._kept.popitem(last=False)
        return found

    def get_all(self, keys: Iterable[str]) -> list[Any]:
        """Return the JSON of objects that were in a list, without those that are gone."""
        return [each for each in self._threads.map(self.get, keys) if each is not None]
