"""Log lines as JSON carry what machines look for."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from qlm.cli.main import main
from qlm.cli.runtime.logs import JsonFormatter


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


PROGRAM = """
import threading, warnings
from qlm.cli.runtime.logs import log_to_stderr, say_last
from qlm.domain.errors import QlmError
log_to_stderr(20, "json")
warnings.warn("old\\nways")
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()
say_last(QlmError("no port"), "json")
raise ValueError("the cause")
"""


def test_whatever_python_prints_is_a_line_of_json() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    warning, thread, last, ended = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert warning["logger"] == "py.warnings" and "UserWarning: old\nways" in warning["message"]
    assert thread["message"] == "ZeroDivisionError ended worker"
    assert "in <lambda>" in thread["exception"]
    assert (last["level"], last["message"]) == ("critical", "no port")
    assert ended["level"] == "critical" and "ValueError: the cause" in ended["exception"]


@pytest.mark.parametrize("config", ["models: 7", "broker: [", "stop: {grace_s: -1}"])
def test_a_configuration_that_is_refused_is_shown_in_json_where_that_was_asked_for(
    tmp_path: Path, config: str
) -> None:
    file = tmp_path / "qlm.yaml"
    file.write_text(config, "utf-8")
    done = CliRunner().invoke(main, ["gateway", "--config", str(file), "--log-format", "json"])
    assert done.exit_code == 2
    assert json.loads(done.stderr)["message"].startswith(f"{file}: ")
