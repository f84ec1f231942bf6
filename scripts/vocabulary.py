"""Find words that the project does not use: `python -m scripts.vocabulary [PATH...]`.

`vocabulary.toml` lists them with the term to use instead. Exit status 1 if one is found, or if too many
docstrings open with a question word.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
LIST: Final = Path(__file__).with_suffix(".toml")

PAGES: Final = (".md", ".yaml", ".yml", ".toml", ".json", ".tpl", ".txt", ".sh", ".lua", ".proto", ".service")
"""Files read as prose, line by line."""

UNREAD: Final = (
    "docs/moved-files.md",  # old names are its subject
    "scripts/vocabulary.toml",
    "scripts/make_tiny_model.py",  # holds a list of English words
    "tests/helm/schemas/",  # published by others
    "requirements/",
    "gateway/qlm/gateway/rpc/v1/",  # generated
)
IDENTIFIERS_ONLY: Final = ("tests/",)
"""Folders whose sentences are names of tests: only identifiers are checked there."""

OPENERS: Final = frozenset(
    {"what", "how", "whether", "when", "who", "whom", "whose", "where", "which", "why"}
)

OPENED_MAX: Final = 0.02
"""Share of docstrings that may open with one of `OPENERS`."""

_PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@dataclass(frozen=True, slots=True)
class Word:
    """A row of the list.

    Attributes:
        use: The term to use instead.
        identifiers: Whole names.
        parts: Components of names.
        phrase: Over prose; None for none.
        allowed: Paths, or paths and texts after `: `, where it may stand.
    """

    use: str
    identifiers: frozenset[str]
    parts: frozenset[str]
    phrase: re.Pattern[str] | None
    allowed: tuple[str, ...]

    def allows(self, path: str, line: str) -> bool:
        """Return whether a use is among the allowed ones."""
        for each in self.allowed:
            where, _, text = each.partition(": ")
            if path.startswith(where) and text in line:
                return True
        return False


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A use of a listed word."""

    path: str
    line: int
    found: str
    use: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found!r}; use {self.use}"


@cache
def words() -> tuple[Word, ...]:
    """Read the list."""
    rows: Sequence[Mapping[str, Any]] = tomllib.loads(LIST.read_text("utf-8"))["word"]
    return tuple(
        Word(
            use=row["use"],
            identifiers=frozenset(row.get("identifiers", ())),
            parts=frozenset(row.get("parts", ())),
            phrase=re.compile("|".join(row["phrases"]), re.IGNORECASE) if row.get("phrases") else None,
            allowed=tuple(row.get("allowed", ())),
        )
        for row in rows
    )


def tracked(paths: Sequence[str] = ()) -> Iterator[str]:
    """Yield the paths that git tracks or would track, below `paths` if given, as far as they are read."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for path in listed.stdout.splitlines():
        if path.endswith((".py", *PAGES)) and not path.startswith(UNREAD) and (ROOT / path).is_file():
            yield path


def findings(path: str, text: str) -> Iterator[Finding]:
    """Find the listed words in one file."""
    lines = text.splitlines()
    prose = not path.startswith(IDENTIFIERS_ONLY)
    if not path.endswith(".py"):
        if prose:
            for at, line in enumerate(lines, 1):
                yield from _in_prose(path, at, line, line)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        at = token.start[0]
        if token.type == tokenize.NAME:
            yield from _in_name(path, at, token.string, lines[at - 1])
        elif prose and token.type in (tokenize.COMMENT, tokenize.STRING):
            for offset, line in enumerate(token.string.splitlines()):
                yield from _in_prose(path, at + offset, line, lines[at + offset - 1])


def _in_name(path: str, at: int, name: str, line: str) -> Iterator[Finding]:
    parts = {part.lower() for part in _PART.findall(name)}
    for word in words():
        if (name in word.identifiers or parts & word.parts) and not word.allows(path, line):
            yield Finding(path, at, name, word.use)


def _in_prose(path: str, at: int, prose: str, line: str) -> Iterator[Finding]:
    for word in words():
        match = word.phrase.search(prose) if word.phrase else None
        if match and not word.allows(path, line):
            yield Finding(path, at, match[0], word.use)


def docstrings(text: str) -> Iterator[str]:
    """Yield the docstrings of a module: its own, those of classes and functions, and of attributes."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for each in body:
            value = each.value if isinstance(each, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value


def opens_as_question(docstring: str) -> bool:
    """Return whether a docstring opens with what, how, whether and the like."""
    return docstring.split(maxsplit=1)[:1] != [] and docstring.split()[0].strip(",.:").lower() in OPENERS


def main(paths: Sequence[str]) -> int:
    """Print what is found below `paths`, or everywhere."""
    found: list[Finding] = []
    opened = counted = 0
    for path in tracked(paths):
        text = (ROOT / path).read_text("utf-8")
        found += findings(path, text)
        if path.endswith(".py") and not path.startswith(IDENTIFIERS_ONLY):
            for docstring in docstrings(text):
                counted += 1
                opened += opens_as_question(docstring)
    for finding in sorted(set(found)):
        print(finding)
    print(f"{len(set(found))} uses of listed words")
    print(f"{opened} of {counted} docstrings open with what, how, whether ...")
    return 1 if found or opened > OPENED_MAX * counted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
