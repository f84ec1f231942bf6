"""Calls of the Lua scripts, each atomic in Redis, called by digest and loaded when missing."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from qlm.domain.errors import QlmError
from qlm.domain.length_histogram import LENGTH_EDGES
from qlm.domain.ports.clock import Clock
from qlm.store.core.limits import NOTIFY_WITHIN, StoreLimits
from qlm.store.redis.errors import translated_errors

TIME_DIGITS: Final = 20

_CONSTANTS: Final = (
    f"local LENGTH_EDGES = {{ {', '.join(map(str, LENGTH_EDGES))} }}\nlocal NOTIFY_WITHIN = {NOTIFY_WITHIN}\n"
)

Argument = bytes | str | int


def padded(time_ns: int) -> str:
    """Format a time so that strings sort as times do."""
    return f"{max(time_ns, 0):0{TIME_DIGITS}d}"


@dataclass(frozen=True, slots=True)
class _Script:
    text: str
    sha: str


def _load(name: str) -> _Script:
    folder = files("qlm.store.redis") / "lua"
    text = _CONSTANTS + (folder / "common.lua").read_text() + (folder / f"{name}.lua").read_text()
    return _Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class Scripts:
    """Scripts under one key prefix."""

    def __init__(
        self, client: Redis, address: str, *, prefix: str, clock: Clock, limits: StoreLimits
    ) -> None:
        self._client = client
        self._address = address
        self._prefix = prefix
        self._clock = clock
        self._limits = limits
        self._known: dict[str, _Script] = {}
        self._incarnation = 0

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
        answers = await self.try_each(name, calls, now_ns=now_ns)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    async def try_each(
        self, name: str, calls: Sequence[Sequence[Argument]], *, now_ns: int | None = None
    ) -> list[Any]:
        """Do as `run_each`, and return an error in the slot of each call that failed by itself.

        Raises:
            StoreUnavailableError: Redis cannot be reached, or cannot write.
            StoreDataError: The only call found damaged keys.
        """
        script = self._known.get(name) or self._known.setdefault(name, _load(name))
        header = self._header(self._clock.now_ns() if now_ns is None else now_ns)
        with translated_errors(self._address):
            try:
                answers = await self._evaluate(script, header, calls)
            except NoScriptError:
                await self._client.script_load(script.text)
                answers = await self._evaluate(script, header, calls)
        return [self._translated(answer) for answer in answers]

    def _translated(self, answer: Any) -> Any:
        if not isinstance(answer, RedisError):
            return answer
        try:
            with translated_errors(self._address):
                raise answer
        except QlmError as error:
            return error

    async def _evaluate(
        self, script: _Script, header: Sequence[Argument], calls: Sequence[Sequence[Argument]]
    ) -> list[Any]:
        if len(calls) == 1:
            return [await self._client.evalsha(script.sha, 0, *header, *calls[0])]
        # Not a transaction, so that Redis serves other clients between the runs. Loading the script first
        # costs nothing if it is known, and otherwise all runs would fail.
        pipeline = self._client.pipeline(transaction=False)
        pipeline.script_load(script.text)
        for arguments in calls:
            pipeline.evalsha(script.sha, 0, *header, *arguments)
        return (await pipeline.execute(raise_on_error=False))[1:]

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
