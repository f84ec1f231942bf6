"""The Python and curl examples of README.md and docs/, run against the built-in configuration."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from qlm.cli.config.default import emulated_config
from support.flaky import wait_until
from support.ports import free_port
from support.qlm_process import QLM, QlmProcess, serving

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
ENDS = re.compile(r"[|>;]")


def blocks(*languages: str) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        yield from (
            (page, text) for language, text in BLOCK.findall(page.read_text("utf-8")) if language in languages
        )


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell block, of which the first of a pipe alone counts."""
    command = ""
    for line in text.splitlines():
        command += line + "\n"
        try:
            words = shlex.split(command.replace("\\\n", " "), comments=True)
        except ValueError:  # a quotation goes on in the next line
            continue
        command = ""
        end = next((at for at, word in enumerate(words) if ENDS.match(word)), len(words))
        if words[:end]:
            yield words[:end]


PRINTED = {
    code: printed
    for page in PAGES
    for code, printed in re.findall(
        r"^```(?:python|sh)\n([^`]*?)^```\n\n```text\n(.*?)^```",
        page.read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
}
"""What blocks print that are shown with what they print directly behind them."""

PYTHON = [pytest.param(text, id=page.name) for page, text in blocks("python")]
CURL = [
    pytest.param(words[1:], id=f"{page.name}: {words[1:2]}")
    for page, text in blocks("sh", "console")
    for words in commands(text)
    if words[0] == "curl"
]


@pytest.fixture(scope="module")
def served() -> Iterator[QlmProcess]:
    """The built-in configuration, on free ports, ten times as fast."""
    ports = {name: {"port": free_port()} for name in ("http", "grpc", "admin")}
    config = emulated_config({**ports, "emulate": {"time_scale": 0.1}})
    with serving(config.model_dump(mode="json", exclude_unset=True)) as process:
        yield process


@pytest.fixture(scope="module")
def ended_id(served: QlmProcess) -> str:
    """The id of an answered request."""
    body = {"model": "mistral-7b", "prompt": "Hi", "max_tokens": 60, "ignore_eos": True}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=120)
    return answer.raise_for_status().headers["x-request-id"]


def test_there_are_examples() -> None:
    assert len(PYTHON) >= 4
    assert len(CURL) >= 8
    assert len(PRINTED) >= 3


@pytest.mark.parametrize("code", PYTHON)
def test_a_python_example_prints_an_answer(code: str, served: QlmProcess) -> None:
    here = code.replace("http://127.0.0.1:8000", served.url).replace("127.0.0.1:8001", served.grpc_address)
    done = subprocess.run(
        [sys.executable, "-c", here], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stdout == PRINTED.get(code, done.stdout)


@pytest.mark.parametrize("words", CURL)
def test_a_curl_example_is_answered(words: list[str], served: QlmProcess, ended_id: str) -> None:
    def here(word: str) -> str:
        for host in ("http://127.0.0.1", "127.0.0.1", "localhost"):
            word = word.replace(f"{host}:8000", served.url).replace(f"{host}:8090", served.admin_url)
        return word.replace("$ID", ended_id)

    argv = ["curl", "--fail", "--silent", "--show-error", *map(here, words)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    streams = '"stream": true' in " ".join(words) or "/events" in " ".join(words)
    assert ("data: [DONE]" in done.stdout) is streams
    printed = PRINTED.get(f"{shlex.join(['curl', *words])}\n")
    assert printed is None or printed.strip() == done.stdout


def test_the_table_of_requests_has_the_columns_that_the_first_hour_shows(
    served: QlmProcess, ended_id: str
) -> None:
    page = (ROOT / "docs/first-hour.md").read_text("utf-8")
    (shown,) = re.findall(r"^request +model .*$", page, re.MULTILINE)
    wide = {**os.environ, "COLUMNS": str(len(shown) + 20)}
    argv = [str(QLM), "requests", "--url", served.admin_url]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, env=wide)
    (heads,) = [line for line in done.stdout.splitlines() if line.startswith("request ")]
    assert heads.split() == shown.split()
    assert ended_id in done.stdout


def test_qlm_serve_runs_batches(served: QlmProcess) -> None:
    body = {"model": "mistral-7b", "prompt": "Hi", "max_tokens": 2}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        wait_until(lambda: client.batches.retrieve(batch.id).status == "completed", "the batch has ended")
        counts = client.batches.retrieve(batch.id).request_counts
    assert counts is not None
    assert (counts.completed, counts.failed) == (1, 0)
