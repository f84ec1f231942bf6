"""The glossary and the code use the same words."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/glossary.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| term | meaning")
]


@cache
def defined() -> frozenset[str]:
    """Return the classes, functions, type aliases and modules of the production code."""
    names: set[str] = set()
    for folder in ROOT.glob("*/qlm"):
        for path in folder.rglob("*.py"):
            names.add(path.stem)
            names |= set(
                re.findall(r"^ *(?:class|def|async def) (\w+)", path.read_text("utf-8"), re.MULTILINE)
            )
            names |= set(re.findall(r"^(\w+)(?:: TypeAlias)? = ", path.read_text("utf-8"), re.MULTILINE))
    return frozenset(names)


def test_there_are_terms() -> None:
    assert len(ROWS) > 40
    assert all(len(row) == 3 for row in ROWS)


def test_the_terms_are_in_order_and_defined_once() -> None:
    terms = [re.sub(r"[^a-z]", " ", row[0].lower()) for row in ROWS]
    assert terms == sorted(set(terms))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_term_names_its_type(row: list[str]) -> None:
    names = re.findall(r"`(\w+)`", row[2])
    assert names
    assert set(names) <= defined()
