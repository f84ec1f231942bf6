"""Arrays without reference counts for compiled code.

Numba counts a reference, atomically, whenever a variable or an argument comes to hold an array, and its
optimiser finds only some of the pairs that cancel out: that took 40 % of the search. An array without an
owner is not counted.
"""

from typing import Any, Final, Protocol, TypeVar, cast

from numba.core import cgutils, types
from numba.extending import intrinsic

T = TypeVar("T")


class _WithoutRefcounts(Protocol):
    def __call__(self, value: T) -> T: ...


@intrinsic
def _without_owner(_context: Any, value: Any) -> Any:
    """Drop the owner of an array; the type stays."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _disowned(context, builder, signature.args[0], arguments[0])

    return value(value), code


def _disowned(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.BaseTuple):
        each: Any = kind
        parts = [
            _disowned(context, builder, part, builder.extract_value(value, at))
            for at, part in enumerate(each.types)
        ]
        return context.make_tuple(builder, kind, parts)
    if not isinstance(kind, types.Array):
        return value
    array = context.make_array(kind)(context, builder, value)
    nothing: Any = cgutils.get_null_value
    array.meminfo, array.parent = nothing(array.meminfo.type), nothing(array.parent.type)
    return array._getvalue()


without_refcounts: Final = cast(_WithoutRefcounts, _without_owner)
"""Copies an array, or a tuple of arrays and other values, without its owner; in compiled code only.

The caller must keep the originals while the copies are in use, and must not return the copies.
"""
