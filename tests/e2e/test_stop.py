"""`qlm serve` is told to stop while a client waits: told once it answers first, told twice it just ends."""

import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.ports import free_port
from support.qlm_process import QlmProcess, emulated

MODEL = "mistral-7b"


@pytest.mark.timeout(300)
def test_who_waits_is_answered_first_and_what_cannot_wait_goes_on_in_the_next_life(tmp_path: Path) -> None:
    config = emulated(
        MODEL,
        time_scale=1.0,
        http={"port": free_port()},
        data_dir=str(tmp_path / "data"),
        stop={"grace_s": 3600},
    )
    process = QlmProcess("serve", "serve", config=config, folder=tmp_path)
    process.start()
    try:
        with ThreadPoolExecutor() as clients:
            process.wait_ready(instances=1)
            answer = clients.submit(ask, process.url, 150)
            wait_running(process)
            os.kill(process.pid, signal.SIGTERM)
            assert answer.result().status_code == 200
            assert answer.result().json()["usage"]["completion_tokens"] == 150
            wait(process, lambda: process.exit_code is not None)
            assert process.exit_code == 0, process.log()
            process.close()

            process.start()
            id = cut_off(process, clients)
            process.close()

            process.start()
            process.wait_ready()
            wait(process, lambda: state(process, id)["status"] == "ended")
            assert state(process, id)["response"]["usage"]["completion_tokens"] == 600
    finally:
        process.close()


@pytest.mark.timeout(300)
def test_a_second_signal_reaches_the_clients_of_gateway_workers(tmp_path: Path) -> None:
    config = emulated(MODEL, time_scale=1.0, http={"port": free_port(), "workers": 2}, stop={"grace_s": 3600})
    process = QlmProcess("serve", "serve", config=config, folder=tmp_path)
    process.start()
    try:
        with ThreadPoolExecutor() as clients:
            cut_off(process, clients)
    finally:
        process.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("blocked", ["planner", "queue file"])
def test_a_blocked_thread_does_not_keep_it(tmp_path: Path, blocked: str) -> None:
    config = emulated(MODEL, http={"port": free_port()}, data_dir=str(tmp_path / "data"))
    process = QlmProcess("serve", "serve", config=config, folder=tmp_path, program=hanging(tmp_path, blocked))
    process.start()
    try:
        process.wait_ready(instances=1)
        wait(process, lambda: "hangs" in process.log() or blocked == "queue file")
        os.kill(process.pid, signal.SIGTERM)
        if blocked == "queue file":
            wait(process, lambda: "hangs" in process.log())
            os.kill(process.pid, signal.SIGTERM)
        wait(process, lambda: process.exit_code is not None)
        # An orderly end but for the thread; a queue file that was not closed is a failure.
        assert process.exit_code == (0 if blocked == "planner" else 1), process.log()
        assert "threads are blocked: qlm_" in process.log()
        assert "(hang in serve_hanging.py)" in process.log()
    finally:
        process.close()


def hanging(folder: Path, what: str) -> Path:
    """Return a `qlm` of which one call in a thread never returns, as on a file system that hangs."""
    module, name = {
        "planner": ("qlm.cli.runtime.plan_generator", "compiled_code_folder"),
        "queue file": ("qlm.broker.sqlite.file", "SqliteFile._shut"),
    }[what]
    program = folder / "serve_hanging.py"
    program.write_text(
        f"#!{sys.executable}\n"
        "import threading\n"
        f"import {module}\n"
        "from qlm.cli.main import main\n"
        "from qlm.cli.runtime import serving\n"
        "serving.AT_ONCE_S = 3.0\n"
        "def hang(*_):\n"
        "    print('hangs', flush=True)\n"
        "    threading.Event().wait()\n"
        f"{module}.{name} = hang\n"
        "main()\n"
    )
    program.chmod(0o700)
    return program


def cut_off(process: QlmProcess, clients: ThreadPoolExecutor) -> str:
    """Stop a process by two signals while a client waits; return the id of its request."""
    process.wait_ready(instances=1)
    stops = process.log().count("a second signal")
    cut = clients.submit(ask, process.url, 600)
    wait_running(process)
    os.kill(process.pid, signal.SIGTERM)
    wait(process, lambda: process.log().count("a second signal") > stops)
    os.kill(process.pid, signal.SIGTERM)
    answer = cut.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "gateway_stopping")
    wait(process, lambda: process.exit_code is not None)
    return answer.headers["x-request-id"]


def ask(url: str, tokens: int) -> httpx.Response:
    body = {"model": MODEL, "prompt": "a story", "max_tokens": tokens, "ignore_eos": True}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=120)


def state(process: QlmProcess, id: str) -> dict[str, Any]:
    found: dict[str, Any] = (
        httpx.get(f"{process.url}/v1/requests/{id}", timeout=120).raise_for_status().json()
    )
    return found


def wait_running(process: QlmProcess) -> None:
    def runs() -> bool:
        listed = httpx.get(f"{process.admin_url}/admin/v1/requests", params={"state": "running"}, timeout=120)
        return any(each["output_tokens"] for each in listed.raise_for_status().json()["requests"])

    wait(process, runs)


def wait(process: QlmProcess, holds: Callable[[], bool], limit_s: float = 60.0) -> None:
    until_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < until_s, process.log()
        time.sleep(0.02)
