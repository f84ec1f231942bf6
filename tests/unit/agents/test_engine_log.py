"""An agent logs which engine is up."""

from pathlib import Path

import pytest

from support.plant import plant
from support.requests import a_request


async def test_each_engine_that_is_brought_up_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="qlm.agents"):
        async with plant(tmp_path) as it:
            await it.accept(a_request("r0"))
            await it.all_end_exactly_once()
    assert [each.getMessage() for each in caplog.records if "is up" in each.getMessage()] == [
        "i: engine of m is up"
    ]
