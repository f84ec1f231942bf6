"""Calls of the Lua scripts, each atomic in Redis, called by digest and loaded when missing."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from redis.exceptions import RedisError

from qlm.domain.length_histogram import LENGTH_EDGES
from qlm.domain.ports.clock import Clock
from qlm.store.core.limits import NOTIFY_WITHIN, StoreLimits
from qlm.store.redis.errors import translated_errors
from qlm.store.redis.pipeline import Argument, ScriptPipeline

TIME_DIGITS: Final = 20

_CONSTANTS: Final = (
    f"local LENGTH_EDGES = {{ {', '.join(map(str, LENGTH_EDGES))} }}\nlocal NOTIFY_WITHIN = {NOTIFY_WITHIN}\n"
)


def padded(time_ns: int) -> str:
    """Format a time so that strings sort as times do."""
    return f"{max(time_ns, 0):0{TIME_DIGITS}d}"


@dataclass(frozen=True, slots=True)
class _Script:
    text: str
    sha: str


def _load() -> dict[str, _Script]:
    """Read all scripts, by name, while files can be opened and are those of the code that runs."""
    texts = {
        each.name.removesuffix(".lua"): each.read_text()
        for each in (files("qlm.store.redis") / "lua").iterdir()
        if each.name.endswith(".lua")
    }
    before = _CONSTANTS + texts.pop("common")
    return {name: _script(before + text) for name, text in texts.items()}


def _script(text: str) -> _Script:
    return _Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class Scripts:
    """Scripts under one key prefix."""

    def __init__(
        self, pipeline: ScriptPipeline, address: str, *, prefix: str, clock: Clock, limits: StoreLimits
    ) -> None:
        self._pipeline = pipeline
        self._address = address
        self._prefix = prefix
        self._clock = clock
        self._limits = limits
        self._scripts = _load()
        self._incarnation = 0

    @property
    def kept_s(self) -> float:
        """Time for which ended requests are kept."""
        return self._limits.result_ttl_s

    def saw_incarnation(self, incarnation: int) -> None:
        """Remember an incarnation: one that this process starts later will be larger."""
        self._incarnation = max(self._incarnation, incarnation)

    async def run(self, name: str, *arguments: Argument, now_ns: int | None = None) -> Any:
        """Run a script; `now_ns` is the clock's time unless given.

        Raises:
            StoreUnavailableError: Redis cannot be reached, or cannot write.
            StoreDataError: The script found damaged keys.
        """
        return (await self.run_each(name, [arguments], now_ns=now_ns))[0]

    async def run_each(
        self, name: str, calls: Sequence[Sequence[Argument]], *, now_ns: int | None = None
    ) -> list[Any]:
        """Run a script several times in one round trip, each run atomic.

        Raises:
            StoreUnavailableError: Redis cannot be reached, or cannot write.
            StoreDataError: The script found damaged keys.
        """
        script = self._scripts[name]
        header = self._header(self._clock.now_ns() if now_ns is None else now_ns)
        whole = [(*header, *arguments) for arguments in calls]
        with translated_errors(self._address):
            answers = await self._pipeline.run(script.text, script.sha, whole)
            for answer in answers:
                if isinstance(answer, RedisError):
                    raise answer
        return answers

    def _header(self, now_ns: int) -> tuple[Argument, ...]:
        return (
            self._prefix,
            padded(now_ns),
            max(self._clock.now_ns(), self._incarnation + 1),
            padded(now_ns - self._limits.result_ttl_ns),
            max(1, self._limits.result_ttl_ns // 1_000_000),
            self._limits.results_max,
            self._limits.events_max,
            self._limits.lengths_window,
            self._limits.events_waiting_max,
        )
