"""The Lua scripts of the store on Redis: read once, before the first call."""

from collections.abc import Sequence
from typing import Any

import pytest

from qlm.cli.runtime.clock import SystemClock
from qlm.store.core.limits import StoreLimits
from qlm.store.redis import scripts
from qlm.store.redis.pipeline import Argument, ScriptPipeline
from qlm.store.redis.scripts import Scripts


class AnsweringPipeline(ScriptPipeline):
    """Answers each call with the text of its script."""

    def __init__(self) -> None:
        pass

    async def run(self, text: str, sha: str, calls: Sequence[Sequence[Argument]]) -> list[Any]:
        return [text for _ in calls]


async def test_no_file_is_opened_for_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Scripts(AnsweringPipeline(), "redis://r", prefix="p:", clock=SystemClock(), limits=StoreLimits())

    def open_none(package: str) -> None:
        raise OSError(24, "Too many open files", package)

    monkeypatch.setattr(scripts, "files", open_none)
    assert "redis.call" in await made.run("change_lease")
