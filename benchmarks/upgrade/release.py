"""Another version of QLM in a virtual environment of its own, from a wheel or from the history."""

import hashlib
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

FIRST: Final = "efb3399"
"""Revision before the formats of version 2."""

ROOT: Final = Path(__file__).resolve().parents[2]
_LOCK: Final = "requirements/serve.lock"
_INSTALLED: Final = "installed-with-engine"

_ENGINE: Final = '''"""Emulated engine of the checkout that tries this version: both have one model."""

import os
import sys

os.execv({python!r}, [{python!r}, "-m", "{module}", *sys.argv[1:]])
'''
_ENGINE_MODULE: Final = "qlm.simulator.emulation.command"


class NotInstalledError(Exception):
    """A version that cannot be built or installed."""


@dataclass(frozen=True, slots=True)
class Release:
    """An installed version: its name in messages, and its `qlm`."""

    name: str
    qlm: Path


def installed(source: str, folder: Path = ROOT / "build") -> Release:
    """Return a version installed below `folder`, from there if an earlier call has made it.

    Args:
        source: Path of a wheel, or a revision of this repository.
        folder: Folder of all versions.

    Raises:
        NotInstalledError: There is no such wheel or revision, or it cannot be built or installed.
    """
    is_wheel = source.endswith(".whl")
    name = _digest(Path(source)) if is_wheel else _commit(source)
    home = folder / f"release-{name}"
    if not (home / _INSTALLED).exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        wheel = Path(source).resolve() if is_wheel else _built(name, home)
        _install(wheel, home, None if is_wheel else _lock_of(name))
        (home / _INSTALLED).touch()
    return Release(name, home / "venv/bin/qlm")


def _digest(wheel: Path) -> str:
    if not wheel.is_file():
        raise NotInstalledError(f"there is no wheel {wheel}")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()[:12]


def _commit(revision: str) -> str:
    try:
        found = _run("git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except NotInstalledError as error:
        raise NotInstalledError(
            f"this clone has no revision {revision}: it is shallow (`git fetch --unshallow`), or not a git "
            "clone; a wheel (FROM=path/to.whl) does as well"
        ) from error
    return found.decode().strip()[:12]


def _built(revision: str, home: Path) -> Path:
    """Build the wheel of a revision."""
    tree = home / "tree"
    tree.mkdir(parents=True, exist_ok=True)
    subprocess.run(("tar", "-x", "-C", tree), input=_run("git", "archive", revision), check=True)
    _uv("build", "--wheel", "--no-build-isolation", "--offline", "--out-dir", home, tree)
    (wheel,) = home.glob("*.whl")
    return wheel


def _lock_of(revision: str) -> bytes:
    return _run("git", "show", f"{revision}:{_LOCK}")


def _install(wheel: Path, home: Path, lock: bytes | None) -> None:
    """Install a wheel; with this checkout's dependencies if it has the same lock or none."""
    environment = home / "venv"
    venv.create(environment, symlinks=True, with_pip=False)
    python = environment / "bin/python"
    (packages,) = environment.glob("lib/python*/site-packages")
    if lock is None or lock == (ROOT / _LOCK).read_bytes():
        (packages / "dependencies.pth").write_text(f"{distribution('uvloop').locate_file('')}\n", "utf-8")
    else:
        (home / "serve.lock").write_bytes(lock)
        _uv("pip", "install", "--python", python, "--require-hashes", "-r", home / "serve.lock")
    _uv("pip", "install", "--python", python, "--offline", "--no-deps", wheel)
    _run(str(python), "-m", "qlm.planner.warm_up")
    engine = packages.joinpath(*_ENGINE_MODULE.split(".")).with_suffix(".py")
    engine.write_text(_ENGINE.format(python=sys.executable, module=_ENGINE_MODULE), "utf-8")


def _uv(*arguments: str | Path) -> None:
    _run(sys.executable, "-m", "uv", *map(str, arguments))


def _run(*command: str) -> bytes:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise NotInstalledError(f"{command[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace")[-2000:]
        raise NotInstalledError(f"{' '.join(command)} failed: {said}") from error
