"""Compiled functions, kept in numba's cache until a source of the planner changes.

Numba itself keeps a function until the file with that function changes. But the code of a function holds the
functions that it calls and the constants that it reads, and most of these are in other files.
"""

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile

_SOURCES: Final = Path(__file__).parents[1]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[_Function], _Function]:
    """Return a decorator that compiles a function when it is first called; it does not hold the GIL.

    Args:
        options: Further options of `numba.njit`.
    """

    def decorate(function: _Function) -> _Function:
        dispatcher = njit(nogil=True, **options)(function)
        dispatcher._cache = _cache_of(function)  # as `cache=True` does with numba's own
        return cast(_Function, dispatcher)

    return decorate


def _cache_of(function: Callable[..., Any]) -> FunctionCache:
    """Return numba's cache of a function, stamped with all sources of the planner."""
    kept = FunctionCache(function)
    kept._cache_file = IndexDataCacheFile(
        cache_path=kept.cache_path, filename_base=kept._impl.filename_base, source_stamp=_stamp()
    )
    return kept


@cache
def _stamp() -> str:
    digest = sha256()
    for path in sorted(_SOURCES.rglob("*.py")):
        digest.update(path.relative_to(_SOURCES).as_posix().encode() + b"\0")
        digest.update(sha256(path.read_bytes()).digest())
    return digest.hexdigest()
