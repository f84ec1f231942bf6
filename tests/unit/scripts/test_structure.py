"""`make check` fails when a rule of the structure is broken: each is planted in a copy of the tree."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.structure import broken, circles, modules

ROOT = Path(__file__).resolve().parents[3]
COMPONENTS = sorted(path.parent.name for path in ROOT.glob("*/qlm"))


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    """A copy of the production code and of what the linter reads."""
    for component in COMPONENTS:
        shutil.copytree(ROOT / component, tmp_path / component, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    yield tmp_path


def plant(root: Path, path: str, line: str) -> None:
    file = root / path
    file.write_text(f"{file.read_text('utf-8')}\n{line}\n", "utf-8")


def found_in(root: Path) -> list[str]:
    return list(broken(modules(root)))


@pytest.mark.parametrize(
    ("path", "line", "rule"),
    [
        ("domain/qlm/domain/ids.py", "from qlm.domain.request import Request as _R", "import circle"),
        (
            "agents/qlm/agents/core/timers.py",
            "if TYPE_CHECKING:\n    from qlm.agents.core.agent import Agent",
            "imports the agent",
        ),
        (
            "gateway/qlm/gateway/core/limits.py",
            "class Bag:\n    def __init__(self) -> None:\n"
            + "".join(f"        self.a{n} = 0\n" for n in range(16)),
            "16 public attributes",
        ),
        (
            "domain/qlm/domain/ids.py",
            'class Pair:\n    """A pair.\n\n    Attributes:\n        left: First. right: Second.\n    """\n'
            "    left: int\n    right: int\n",
            "ids.Pair: `right` needs a line",
        ),
    ],
)
def test_a_planted_break_is_found(copy: Path, path: str, line: str, rule: str) -> None:
    plant(copy, path, line)
    assert any(rule in each for each in found_in(copy))


def test_a_folder_with_too_many_modules_is_found(copy: Path) -> None:
    for n in range(16):
        (copy / f"store/qlm/store/redis/part_{n}.py").touch()
    assert any("store/redis holds" in each for each in found_in(copy))


def test_the_command_exits_with_1(copy: Path) -> None:
    plant(copy, "domain/qlm/domain/ids.py", "from qlm.domain.request import Request as _R")
    command = [sys.executable, "-m", "scripts.structure", str(copy)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "import circle: qlm.domain." in done.stdout


@pytest.mark.parametrize(
    "path",
    [
        "agents/qlm/agents/core/scheduling/preemption.py",
        "controller/qlm/controller/core/deadlines.py",
        "gateway/qlm/gateway/core/session.py",
        "store/qlm/store/core/leases.py",
    ],
)
def test_the_linter_finds_a_clock_in_a_core(copy: Path, path: str) -> None:
    plant(copy, path, "import time")
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as f; f()",
        "--no-cache",
    ]
    env = {"PYTHONPATH": ":".join(str(copy / component) for component in COMPONENTS), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{path.split('/', 1)[1].removesuffix('.py').replace('/', '.')} -> time" in done.stdout


def test_circles_are_strongly_connected_components() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"f"}, "f": {"e"}, "g": set()}
    assert sorted(circles(arrows)) == [["a", "b", "c"], ["e", "f"]]
