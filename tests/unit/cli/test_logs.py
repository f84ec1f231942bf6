"""Log lines as JSON carry what machines look for."""

import json
import logging
import sys

from qlm.cli.logs import JsonFormatter


def written(record: logging.LogRecord) -> dict[str, str]:
    line = JsonFormatter().format(record)
    assert "\n" not in line
    plain: dict[str, str] = json.loads(line)
    return plain


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("qlm.gateway").makeRecord(
        "qlm.gateway", logging.WARNING, "file", 1, message, args, None, extra=extra
    )


def test_a_line_about_a_request_names_it() -> None:
    line = written(record("request %s waits:\nsee", "r1", request_id="r1"))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning", "logger": "qlm.gateway", "message": "request r1 waits:\nsee", "request_id": "r1",
    }  # fmt: skip


def test_another_line_has_no_request_and_an_error_its_trace() -> None:
    assert "request_id" not in written(record("planning skipped"))
    failed = record("it failed")
    try:
        raise ValueError("the cause")
    except ValueError:
        failed.exc_info = sys.exc_info()
    assert "ValueError: the cause" in written(failed)["exception"]
