"""`pip install .` into an empty virtual environment gives a `qlm` that serves a request."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from support.ports import free_port
from support.process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
INSTALL_S = 240
READY_S = 60
SIZE_MAX_MB = 450


def environment() -> dict[str, str]:
    """Return this process's environment without what would make its own packages visible."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    return {key: value for key, value in os.environ.items() if key not in hidden}


def sources(folder: Path) -> Path:
    """Copy what a wheel is built from."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    for name in build["dev-mode-dirs"]:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    return folder


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.servers
@pytest.mark.timeout(INSTALL_S + READY_S + 60)
def test_a_base_installation_serves_a_chat_request(tmp_path: Path) -> None:
    venv, home = tmp_path / "venv", tmp_path / "home"
    home.mkdir()
    env = environment()
    subprocess.run([sys.executable, "-m", "venv", venv], env=env, check=True, capture_output=True)
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--no-compile", "--no-cache-dir"]
    done = subprocess.run(
        [*pip, str(sources(tmp_path / "tree"))],
        env=env,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_S,
    )
    assert done.returncode == 0, done.stderr
    size_mb = sum(each.stat().st_size for each in venv.rglob("*") if each.is_file()) / 1e6
    assert size_mb <= SIZE_MAX_MB

    port = free_port()
    argv = [str(venv / "bin/qlm"), "serve", "--port", str(port), "--grpc-port", "0", "--admin-port", "0"]
    server = ServerProcess("qlm", argv, env=env, folder=home)
    try:
        server.start()
        server.wait_ready(lambda: bool(call(f"http://127.0.0.1:{port}/readyz")), timeout_s=READY_S)
        answer = call(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            {"model": "mistral-7b", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8},
        )
        assert answer["choices"][0]["message"]["content"]
    finally:
        server.kill()
