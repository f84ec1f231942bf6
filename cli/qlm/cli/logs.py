"""What the log of a process looks like."""

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final, Literal

LogFormat = Literal["text", "json"]

_TEXT: Final = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`; `request_id` and `exception` if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
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
    """Write log lines of this level and above; libraries only say what went wrong."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else _TEXT)
    logging.basicConfig(level=level, handlers=[handler])
    for library in ("uvicorn", "opentelemetry"):
        logging.getLogger(library).setLevel(max(level, logging.WARNING))
    logging.getLogger("pika").setLevel(max(level, logging.CRITICAL))
