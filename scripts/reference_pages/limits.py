"""pydantic's constraints in words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from pydantic.fields import FieldInfo

from scripts.reference_pages.markdown import number

_NAMES: Final = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")


@dataclass(frozen=True, slots=True)
class Limits:
    """Constraints by pydantic's names of them."""

    given: Mapping[str, Any]

    @classmethod
    def of(cls, metadata: Sequence[Any]) -> Self:
        """Collect the constraints that stand beside a type."""
        return cls(dict(_constraints(metadata)))

    def of_number(self) -> tuple[str, ...]:
        """Say which numbers are allowed."""
        low = [number(self.given["ge"])] if "ge" in self.given else []
        low += [f"above {number(self.given['gt'])}"] if "gt" in self.given else []
        high = [number(self.given["le"])] if "le" in self.given else []
        high += [f"below {number(self.given['lt'])}"] if "lt" in self.given else []
        if low and high:
            return (f"{low[0]} to {high[0]}" if "ge" in self.given else f"{low[0]}, up to {high[0]}",)
        if high:
            return (f"at most {high[0]}" if "le" in self.given else high[0],)
        return (f"at least {low[0]}" if "ge" in self.given else low[0],) if low else ()

    def of_text(self) -> tuple[str, ...]:
        """Say which texts are allowed."""
        pattern = self.given.get("pattern")
        return (*self._count("characters"), *([f"matches `{pattern}`"] if pattern else []))

    def of_many(self) -> tuple[str, ...]:
        """Say how many are allowed."""
        return self._count("of them")

    def _count(self, unit: str) -> tuple[str, ...]:
        low, high = self.given.get("min_length"), self.given.get("max_length")
        if high is not None:
            return (f"{low or 0} to {high} {unit}" if low else f"at most {high} {unit}",)
        if low == 1 and unit == "characters":
            return ("not empty",)
        return (f"at least {low} {unit}",) if low else ()


def _constraints(metadata: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from _constraints(each.metadata)
            continue
        for name in _NAMES:
            if (value := getattr(each, name, None)) is not None:
                yield name, value
