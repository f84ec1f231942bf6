"""Compiled functions, kept in numba's cache until one of their sources changes.

Numba itself keeps a function until the file with that function changes. But the code of a function holds the
functions that it calls and the constants that it reads, and most of these are in other files.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile

_SOURCES: Final = Path(__file__).parents[1]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(*, sources: tuple[Path, ...] = (), **options: Any) -> Callable[[_Function], _Function]:
    """Return a decorator that compiles a function when it is first called; it does not hold the GIL.

    Args:
        sources: Folders whose sources its code is made of besides those of the planner.
        options: Further options of `numba.njit`.
    """

    def decorate(function: _Function) -> _Function:
        dispatcher = njit(nogil=True, **options)(function)
        with suppress(RuntimeError):  # numba finds no folder to write to
            dispatcher._cache = _cache_of(function, sources)  # as `cache=True` does with numba's own
        return cast(_Function, dispatcher)

    return decorate


def _cache_of(function: Callable[..., Any], sources: tuple[Path, ...]) -> FunctionCache:
    """Return numba's cache of a function, stamped with all its sources."""
    kept = FunctionCache(function)
    kept._cache_file = IndexDataCacheFile(
        cache_path=kept.cache_path,
        filename_base=kept._impl.filename_base,
        source_stamp=_stamp((_SOURCES, *sources)),
    )
    return kept


@cache
def _stamp(folders: tuple[Path, ...]) -> str:
    digest = sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
            digest.update(sha256(path.read_bytes()).digest())
    return digest.hexdigest()
