"""The page of moved files names new paths that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROWS = re.findall(
    r"^\| `(.+?)` \| `(.+?)` \|$", (ROOT / "docs/moved-files.md").read_text("utf-8"), re.MULTILINE
)


def place(module: str) -> Path:
    """Return the path of a module or package, without a suffix."""
    first, *rest = module.split(".")
    if first == "qlm":
        return Path(ROOT, rest[0], "qlm", *rest)
    return Path(ROOT, *([] if first == "benchmarks" else ["tests"]), first, *rest)


def exists(module: str) -> bool:
    return place(module).is_dir() or place(module).with_suffix(".py").is_file()


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 150


@pytest.mark.parametrize("new", sorted({new for _, new in ROWS}))
def test_new_paths_exist(new: str) -> None:
    assert exists(new), f"docs/moved-files.md names {new}; expected the module's present path"
