"""The pages for those who begin name the versions of Python that the scripts take."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "docs/first-hour.md", "docs/deploy-single-machine.md"]
)
def test_a_page_names_the_versions_that_the_scripts_take(page: str) -> None:
    script = (ROOT / "scripts/lib.sh").read_text("utf-8")
    found = re.search(r"\(3, (\d+)\) <= sys\.version_info\[:2\] <= \(3, (\d+)\)", script)
    assert found is not None
    assert f"Python 3.{found[1]} to 3.{found[2]}" in (ROOT / page).read_text("utf-8")
