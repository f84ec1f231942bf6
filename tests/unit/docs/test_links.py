"""Links between the pages lead somewhere, and the index leads to every page."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.reference_pages.markdown import anchor

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
INDEX = ROOT / "docs/README.md"


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield target and fragment of each link to a place in this repository."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            path, _, fragment = target.partition("#")
            yield (page.parent / path).resolve() if path else page, fragment


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {anchor(re.sub(r"\[(.*?)\]\(.*?\)", r"\1", each.replace("`", ""))) for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, fragment in links(page):
        assert target.exists(), f"there is no {target}"
        assert not fragment or fragment in anchors(target), f"{target} has no heading #{fragment}"


def test_the_index_names_every_page() -> None:
    linked = {target for target, _ in links(INDEX)}
    pages = {page for page in PAGES if page.parent.name not in ("decisions",)}
    assert pages - linked - {INDEX, ROOT / "README.md"} == set()
