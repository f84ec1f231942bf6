"""Files and batches of a gateway whose calls are counted, and may fail."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from io import IOBase
from typing import Any, ParamSpec, TypeVar

from qlm.gateway.files.storage import Storage
from simulation.injection import Injector, Site, When

P = ParamSpec("P")
T = TypeVar("T")


ENDINGS = frozenset({"discard"})
"""Calls that may be made twice, and are done though they fail."""


def failing_storage(plain: Storage, injector: Injector) -> Storage:
    """Return a storage with the calls of another one, each of which an injector may let fail."""
    return _FailingStorage(
        plain.files, plain.batches, plain.limits, plain.executor, plain.pace, injector=injector
    )


@dataclass(frozen=True, slots=True)
class _FailingStorage(Storage):
    injector: Injector = field(default_factory=Injector)

    async def call(self, what: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        called: Any = what.func if isinstance(what, partial) else what
        name = called.__name__.lstrip("_")
        fail = self.injector.begin(Site("gateway", "storage", name))
        if name in ENDINGS:  # a file that stays open is no failure of the gateway
            await Storage.call(self, what, *args, **kwargs)
        fail(When.BEFORE)
        answer = await Storage.call(self, what, *args, **kwargs)
        try:
            fail(When.AFTER)
        except Exception:
            _forget(answer)
            raise
        return answer


def _forget(lost: object) -> None:
    """Close what an answer has opened that is lost."""
    if isinstance(lost, IOBase):
        lost.close()
    elif hasattr(lost, "discard"):
        lost.discard()
