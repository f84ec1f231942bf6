"""Tables of batches, and their progress in words."""

from typing import Any

from qlm.cli.inspect.layout import Table
from qlm.cli.inspect.render import ago, span, table

_ENDS = ("completed_at", "failed_at", "expired_at", "cancelled_at")


def batches_table(data: dict[str, Any], now_s: float) -> Table:
    """Lay out batches."""
    columns = ("id", "tenant", "status", "endpoint", "lines>", "done>", "failed>", "pace", "created", "ends")
    rows = (
        (
            each["id"],
            each["tenant"],
            status(each),
            each["endpoint"],
            each["request_counts"]["total"],
            percentage(each),
            each["request_counts"]["failed"],
            pace(each, now_s),
            ago(each["created_at"]),
            ago(_end_s(each)),
        )
        for each in data["batches"]
    )
    return table("batches", columns, rows, spare=("endpoint", "pace", "created"))


def batch_table(batch: dict[str, Any], now_s: float) -> Table:
    """Lay out one batch."""
    rows = [
        ("tenant", batch["tenant"]),
        ("status", status(batch)),
        ("endpoint", batch["endpoint"]),
        ("input", batch["input_file_id"]),
        ("lines", _lines(batch)),
        ("pace", pace(batch, now_s)),
        ("created", ago(batch["created_at"])),
        _end(batch),
        ("answers", batch["output_file_id"]),
        ("errors", batch["error_file_id"]),
    ]
    notes = [_wrong(each) for each in (batch["errors"] or {"data": []})["data"]]
    return table(f"batch {batch['id']}", ("what", "value"), rows, notes=notes)


def _end(batch: dict[str, Any]) -> tuple[str, str | None]:
    """Return when a batch ended, or until when it may run."""
    if (ended_s := _ended_s(batch)) is not None:
        return "ended", ago(ended_s)
    return "window", f"{batch['completion_window']}, ends {ago(batch['expires_at'])}"


def status(batch: dict[str, Any]) -> str:
    """Return the status of a batch, or that it is paused."""
    paused = batch["paused_at"] is not None and batch["status"] in ("validating", "in_progress")
    return "paused" if paused else str(batch["status"])


def _lines(batch: dict[str, Any]) -> str | None:
    counts = batch["request_counts"]
    done = counts["completed"] + counts["failed"]
    if (share := percentage(batch)) is None:
        return None
    return f"{done} of {counts['total']} have an end ({share}), {counts['failed']} failed"


def percentage(batch: dict[str, Any]) -> str | None:
    """Return the share of lines with an end; None before they are counted."""
    counts = batch["request_counts"]
    if not counts["total"]:
        return None
    return f"{100 * (counts['completed'] + counts['failed']) // counts['total']} %"


def pace(batch: dict[str, Any], now_s: float) -> str | None:
    """Return the lines per second since a batch began, and the time that the others take at that pace."""
    counts = batch["request_counts"]
    done = counts["completed"] + counts["failed"]
    if batch["in_progress_at"] is None or not done:
        return None
    until_s = batch["finalizing_at"] or _ended_s(batch) or now_s
    per_s = done / max(1.0, until_s - batch["in_progress_at"])
    text = f"{per_s:.3g} lines/s"
    if status(batch) != "in_progress" or done == counts["total"]:
        return text
    return f"{text}, {span((counts['total'] - done) / per_s)} left"


def _ended_s(batch: dict[str, Any]) -> float | None:
    return next((batch[name] for name in _ENDS if batch[name] is not None), None)


def _end_s(batch: dict[str, Any]) -> float:
    return _ended_s(batch) or float(batch["expires_at"])


def _wrong(error: dict[str, Any]) -> str:
    line = "" if error["line"] is None else f"line {error['line']}: "
    return f"{line}{error['message']}"
