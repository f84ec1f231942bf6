"""Measure the sentences of the documents: `python -m scripts.readability [PAGE...]`.

Code blocks, tables and headings do not count. Exit status 1 if a page exceeds a limit.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
WORDS_MAX: Final = 25
"""Words per sentence, on average over a page."""

PARAGRAPH_MAX: Final = 150
"""Words in a paragraph or list item."""

_FENCE: Final = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_ITEM: Final = re.compile(r"^\s*(?:[-*]|\d+\.)\s+", re.MULTILINE)
_END: Final = re.compile(r"[.?!](?:\s+|$)")
_WORD: Final = re.compile(r"[^\W\d_][\w'-]*")


def pages() -> list[Path]:
    """Return the pages that people write; `docs/reference` is generated."""
    docs = (path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "reference")
    return [*sorted(ROOT.glob("*.md")), *sorted(docs)]


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a page as plain text; inline code is one word."""
    text = _FENCE.sub("\n\n", text)
    text = re.sub(r"`[^`]*`", "code", _LINK.sub(r"\1", text))
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", ">", "<"))]
    for block in re.split(r"\n\s*\n", "\n".join(lines)):
        yield from (each for each in _ITEM.split(block) if each.strip())


def sentences(text: str) -> Iterator[int]:
    """Yield the number of words of each sentence of a page."""
    for paragraph in paragraphs(text):
        for sentence in _END.split(paragraph):
            if words := len(_WORD.findall(sentence)):
                yield words


def faults(page: Path) -> Iterator[str]:
    """Yield what is too long on a page."""
    text = page.read_text("utf-8")
    lengths = list(sentences(text)) or [0]
    mean = sum(lengths) / len(lengths)
    if mean > WORDS_MAX:
        yield f"{mean:.1f} words per sentence on average; at most {WORDS_MAX}"
    for paragraph in paragraphs(text):
        words = len(_WORD.findall(paragraph))
        if words > PARAGRAPH_MAX:
            start = " ".join(paragraph.split()[:8])
            yield f"a paragraph of {words} words, at most {PARAGRAPH_MAX}: {start} ..."


def main(chosen: Sequence[str]) -> int:
    """Print a line per page, and its faults."""
    failed = False
    for page in [Path(each).resolve() for each in chosen] or pages():
        lengths = list(sentences(page.read_text("utf-8"))) or [0]
        mean = sum(lengths) / len(lengths)
        print(f"{page.relative_to(ROOT)}: {mean:.1f} words per sentence, longest {max(lengths)}")
        for fault in faults(page):
            failed = True
            print(f"  {fault}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
