"""Format of what controllers publish: JSON, with a reader and a writer for each kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

from qlm.domain.errors import InvalidValueError
from qlm.domain.ports.published import PublishedKind

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Generic[T]):
    """One kind with its format.

    Attributes:
        kind: The kind.
        to_plain: Writer of a value as dicts, lists, numbers and strings.
        from_plain: Reader of what `to_plain` wrote; raises InvalidValueError for anything else.
    """

    kind: PublishedKind
    to_plain: Callable[[T], dict[str, Any]]
    from_plain: Callable[[Any], T]

    def encode(self, value: T) -> bytes:
        """Return the stored form."""
        return orjson.dumps(self.to_plain(value))

    def decode(self, data: bytes) -> T:
        """Read what `encode` wrote.

        Raises:
            InvalidValueError: It is not JSON, or a field is missing, of the wrong type or out of range.
        """
        try:
            plain = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise InvalidValueError(self.kind, str(error), "JSON") from error
        return self.from_plain(plain)
