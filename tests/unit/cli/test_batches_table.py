"""Progress of batches in words."""

from typing import Any, Final

import pytest

from qlm.cli.inspect.batches import batch_table, batches_table, pace, percentage, status

BATCH: Final[dict[str, Any]] = {
    "id": "batch_1",
    "tenant": "a",
    "status": "in_progress",
    "endpoint": "/v1/responses",
    "input_file_id": "file-1",
    "output_file_id": None,
    "error_file_id": None,
    "completion_window": "1h",
    "created_at": 0,
    "in_progress_at": 100,
    "finalizing_at": None,
    "completed_at": None,
    "failed_at": None,
    "expired_at": None,
    "cancelled_at": None,
    "paused_at": None,
    "expires_at": 3600,
    "request_counts": {"total": 1000, "completed": 240, "failed": 10},
    "errors": None,
}


def test_progress_has_the_pace_and_what_is_left() -> None:
    assert percentage(BATCH) == "25 %"
    assert pace(BATCH, 150) == "5 lines/s, 2.5min left"
    assert pace(BATCH | {"finalizing_at": 350, "status": "finalizing"}, 9000) == "1 lines/s"


@pytest.mark.parametrize("counts", [{"total": 0, "completed": 0, "failed": 0}])
def test_a_batch_that_has_not_begun_has_neither(counts: dict[str, int]) -> None:
    new = BATCH | {"request_counts": counts, "in_progress_at": None, "status": "validating"}
    assert (percentage(new), pace(new, 150)) == (None, None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "in_progress"),
        ({"paused_at": 120}, "paused"),
        ({"paused_at": 120, "status": "cancelling"}, "cancelling"),
    ],
)
def test_a_paused_batch_says_so_until_it_is_cancelled(fields: dict[str, Any], expected: str) -> None:
    assert status(BATCH | fields) == expected
    assert ("left" in str(pace(BATCH | fields, 150))) == (not fields)


def test_tables_have_what_is_wrong_with_the_input() -> None:
    error = {"line": 3, "message": "custom_id is 7; expected a text"}
    failed = BATCH | {"status": "failed", "failed_at": 120, "errors": {"data": [error]}}
    assert "line 3: custom_id is 7; expected a text" in batch_table(failed, 150).notes
    assert batches_table({"batches": [failed]}, 150).columns[0].cells == ("batch_1",)


@pytest.mark.parametrize("name", ["completed", "failed", "expired", "cancelled"])
def test_a_batch_that_has_ended_says_when_and_not_when_its_window_would_end(name: str) -> None:
    rows = [column.cells for column in batch_table(BATCH | {"status": name, f"{name}_at": 120}, 150).columns]
    assert "ended" in rows[0] and "window" not in rows[0]
    assert "window" in batch_table(BATCH, 150).columns[0].cells
