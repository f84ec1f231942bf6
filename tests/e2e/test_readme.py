"""The first requests of README.md and of the HTTP page, run against the built-in configuration."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qlm.cli.config.default import emulated_config
from support.ports import free_port
from support.qlm_process import QlmProcess, serving

ROOT = Path(__file__).resolve().parents[2]
PAGES = "\n".join((ROOT / page).read_text("utf-8") for page in ("README.md", "docs/http-api.md"))
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGES, re.MULTILINE | re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
CURL = [text for language, text in BLOCKS if language == "sh" and text.startswith("curl localhost:8000")]


@pytest.fixture(scope="module")
def served() -> Iterator[QlmProcess]:
    """The built-in configuration, on a free port."""
    config = emulated_config({"http": {"port": free_port()}, "emulate": {"time_scale": 0.1}})
    with serving(config.model_dump(mode="json", exclude_unset=True)) as process:
        yield process


def test_there_are_examples() -> None:
    assert PYTHON
    assert CURL


@pytest.mark.parametrize("code", PYTHON)
def test_a_python_example_prints_an_answer(code: str, served: QlmProcess) -> None:
    command = [sys.executable, "-c", code.replace("http://127.0.0.1:8000", served.url)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("code", CURL)
def test_a_curl_example_is_answered(code: str, served: QlmProcess) -> None:
    script = code.replace("curl localhost:8000", f"curl --fail --silent --show-error {served.url}")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "data: [DONE]" in done.stdout
