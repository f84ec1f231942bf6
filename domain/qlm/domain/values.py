"""Decorator `value`: cheap immutable dataclasses, created many times for each request."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def value(cls: type[T], /) -> type[T]: ...


@overload
def value(*, kw_only: bool = ..., order: bool = ...) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def value(
    cls: type[T] | None = None, /, *, kw_only: bool = True, order: bool = False
) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a dataclass with equality and hash by its fields, frozen for the type checker only.

    Use `dataclass(frozen=True)` for values of which there are few.
    """
    # A dataclass that is frozen at run time sets each field through `object.__setattr__`, which takes five
    # times as long (measured with 13 fields: 3.3 and 0.7 microseconds).
    made = dataclass(slots=True, unsafe_hash=True, kw_only=kw_only, order=order)
    return made if cls is None else made(cls)
