"""Log output of a process, as text or JSON lines."""

import json
import logging
import os
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Literal

import click

from qlm.domain.errors import QlmError

LogFormat = Literal["text", "json"]

_TEXT: Final = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`; `request_id` and `exception` if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request_id := getattr(record, "request_id", None)) is not None:
            line["request_id"] = request_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(level: int, log_format: LogFormat = "text") -> None:
    """Write log lines of this level and above; libraries log only problems."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else _TEXT)
    logging.basicConfig(level=level, handlers=[handler])
    for library in ("uvicorn", "opentelemetry", "botocore", "urllib3"):  # botocore logs session tokens
        logging.getLogger(library).setLevel(max(level, logging.WARNING))
    logging.getLogger("pika").setLevel(max(level, logging.CRITICAL))
    if log_format == "json":
        _log_warnings_and_uncaught()


def say_last(error: QlmError, log_format: LogFormat) -> None:
    """Write the error that ends a process, in the format of its log."""
    if log_format == "text":
        click.echo(f"qlm: {error}", err=True)
        return
    record = logging.LogRecord("qlm.cli", logging.CRITICAL, "", 0, str(error), None, None)
    click.echo(JsonFormatter().format(record), err=True)


def _log_warnings_and_uncaught() -> None:
    """Turn warnings and uncaught exceptions into log lines, so that all output is JSON."""
    logging.captureWarnings(True)
    log = logging.getLogger("qlm.cli")

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        log.critical("%s ended the process", kind.__name__, exc_info=(kind, error, trace))

    def uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
        error = args.exc_value or args.exc_type()
        name = "a thread" if args.thread is None else args.thread.name
        log.error("%s ended %s", args.exc_type.__name__, name, exc_info=error)

    # gRPC reads this when it is imported, which is later; its core would write lines in another format.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.excepthook = uncaught
    threading.excepthook = uncaught_in_thread
