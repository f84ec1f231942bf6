"""Install QLM as users do and use it: `python -m scripts.installs [WHAT...]`.

WHAT is `.`, `wheel`, or the name of an extra; without any, all but `dev` and `vllm`. Each is installed
by uv into an empty environment. It must print its version and, in an empty folder, serve a request.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
BIN: Final = Path(sys.executable).parent
TREE: Final = "."
WHEEL: Final = "wheel"
LEFT_OUT: Final = ("dev", "vllm")
"""Extras of contributors, and of several gigabytes for GPUs."""

READY_S: Final = 240.0
"""Its plan generator is compiled first, which takes half a minute on two idle cores."""
ANSWER_S: Final = 180.0
"""Much longer than on an idle machine, so that a busy one does not fail."""
HIDDEN: Final = ("PYTHONPATH", "VIRTUAL_ENV", "QLM_BROKER", "QLM_STORE")
"""Variables that would show packages or servers of others."""


@dataclass(frozen=True, slots=True)
class Installed:
    """An installation that works.

    Attributes:
        what: What was installed.
        install_s: Time to install it.
        bytes: Size of its environment.
        answer_s: Time from the start of `qlm serve` to the answer of the first request.
    """

    what: str
    install_s: float
    bytes: int
    answer_s: float


def known() -> tuple[str, ...]:
    """Return all that can be installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return (TREE, WHEEL, *(each for each in project["optional-dependencies"] if each not in LEFT_OUT))


def main(words: Sequence[str]) -> int:
    """Check installations, and print a table of their sizes and times."""
    if unknown := set(words) - set(known()):
        print(
            f"installs: {', '.join(sorted(unknown))}; expected some of {', '.join(known())}", file=sys.stderr
        )
        return 2
    print(f"{'what':12}{'install, s':>12}{'size, MB':>12}{'answer, s':>12}")
    return max([_tried(what) for what in words or known()])


def _tried(what: str) -> int:
    """Check one installation and print its line; a failure does not keep others from being checked."""
    try:
        with tempfile.TemporaryDirectory(prefix="qlm-install-") as folder:
            done = install(what, Path(folder))
    except (RuntimeError, OSError, subprocess.CalledProcessError) as failure:
        print(f"installs: {what}: {failure}", file=sys.stderr, flush=True)
        return 1
    print(f"{done.what:12}{done.install_s:12.0f}{done.bytes / 1e6:12.0f}{done.answer_s:12.1f}", flush=True)
    return 0


def install(what: str, folder: Path) -> Installed:
    """Install and use it in an empty folder.

    Raises:
        subprocess.CalledProcessError: It cannot be installed, or `qlm --version` fails.
        RuntimeError: `qlm serve` ends, or does not answer in time.
    """
    venv, home = folder / "venv", folder / "home"
    home.mkdir()
    target = str(ROOT) if what == TREE else str(build_wheel(folder))
    target += "" if what in (TREE, WHEEL) else f"[{what}]"
    began_s = time.monotonic()
    _uv("venv", "--python", sys.executable, str(venv))
    _uv("pip", "install", "--python", str(venv / "bin/python"), target)
    install_s = time.monotonic() - began_s
    size = sum(each.stat().st_size for each in venv.rglob("*") if each.is_file() and not each.is_symlink())
    subprocess.run(
        [venv / "bin/qlm", "--version"], cwd=home, env=_environment(), check=True, capture_output=True
    )
    return Installed(what, install_s, size, serve_one(venv / "bin/qlm", home))


def build_wheel(folder: Path) -> Path:
    """Build the wheel of the working tree."""
    subprocess.run(
        [BIN / "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True, capture_output=True
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def serve_one(qlm: Path, home: Path) -> float:
    """Start `qlm serve`, let it answer a request, stop it; return the seconds from start to answer."""
    port = _free_port()
    began_s = time.monotonic()
    with _serving(qlm, home, port) as server:
        _wait_ready(server, home, port)
        prompt = {"model": "mistral-7b", "prompt": "hello", "max_tokens": 8}
        answer = _call(f"http://127.0.0.1:{port}/v1/completions", prompt)
        if not answer["choices"][0]["text"]:
            raise RuntimeError(f"the answer has no text: {answer}")
        return time.monotonic() - began_s


@contextmanager
def _serving(qlm: Path, home: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    argv = [str(qlm), "serve", "--port", str(port), "--grpc-port", "0", "--admin-port", "0"]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(argv, cwd=home, env=_environment(), stdout=log, stderr=log)
    try:
        yield server
    finally:
        server.terminate()
        server.wait(ANSWER_S)


def _wait_ready(server: subprocess.Popen[bytes], home: Path, port: int) -> None:
    ends_s = time.monotonic() + READY_S
    while server.poll() is None and time.monotonic() < ends_s:
        try:
            _call(f"http://127.0.0.1:{port}/readyz")
            return
        except OSError:
            time.sleep(0.1)
    tail = (home / "log").read_text("utf-8", "replace")[-4000:]
    raise RuntimeError(f"qlm serve is not ready after {READY_S:.0f} s:\n{tail}")


def _call(url: str, body: Mapping[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        return json.load(answer)


def _uv(*words: str) -> None:
    done = subprocess.run(
        [shutil.which("uv", path=str(BIN)) or "uv", "--quiet", *words],
        cwd=ROOT,
        env=_environment(),
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"uv {' '.join(words)}:\n{done.stderr}")


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in HIDDEN}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
