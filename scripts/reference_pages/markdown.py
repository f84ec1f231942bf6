"""Markdown as the reference pages use it."""

import re
from collections.abc import Iterable, Sequence

WRITTEN_BY = "<!-- Written by `make reference`: change the code, not this page. -->"


def page(title: str, *parts: str) -> str:
    """Join a page, with a blank line between its parts."""
    return "\n\n".join([f"# {title}", WRITTEN_BY, *(part.strip() for part in parts if part)]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_line(head), "|" + "---|" * len(head)]
    return "\n".join([*lines, *map(_line, rows)])


def anchor(heading: str) -> str:
    """Return the fragment under which GitHub shows a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def number(value: float) -> str:
    """Write a number in full, without a fraction that is 0."""
    return str(int(value)) if float(value).is_integer() else f"{value:g}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
