"""Pages, order and filter of tables that are watched, and the keys that change them."""

import os
import pty
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import Final

import pytest

from qlm.cli.inspect.render import table
from qlm.cli.inspect.view import View

HEADS: Final = ("model", "waiting>", "oldest")
WAITING: Final = table(
    "class queues",
    HEADS,
    [
        ("mistral", 9, "3.2min ago"),
        ("llama", 10, "50s ago"),
        ("vicuna", 0, None),
        ("Llama-70b", 2, "4.0h ago"),
    ],
)


def rows(view: View) -> list[tuple[str, ...]]:
    return list(zip(*(each.cells for each in view.arranged(WAITING).columns), strict=True))


@pytest.mark.parametrize(
    ("column", "largest_first", "first"),
    [
        (None, False, "mistral"),
        ("waiting", False, "vicuna"),
        ("waiting", True, "llama"),
        ("oldest", True, "Llama-70b"),
        ("oldest", False, "llama"),
        ("model", False, "Llama-70b"),
    ],
)
def test_rows_are_ordered_by_value(column: str | None, largest_first: bool, first: str) -> None:
    assert rows(View(sort=column, descending=largest_first))[0][0] == first


@pytest.mark.parametrize("largest_first", [False, True])
def test_what_is_not_known_comes_last(largest_first: bool) -> None:
    assert rows(View(sort="oldest", descending=largest_first))[-1][0] == "vicuna"


def test_the_filter_ignores_case_and_may_leave_nothing() -> None:
    assert [row[0] for row in rows(View(wanted="LLAMA"))] == ["llama", "Llama-70b"]
    nothing = View(wanted="no such model")
    assert rows(nothing) == []
    assert "class queues" in nothing.drawn([WAITING], 80, 10)[1]


def test_pages_show_each_line_once_and_end_at_the_last() -> None:
    many = table("many", ("id",), [(f"id-{n}",) for n in range(20)])
    seen: list[str] = []
    view = View()
    for number in range(1, 6):
        view, shown = view.drawn([many], 80, 6)
        assert len(shown) == 6
        assert shown[-1].startswith(f"page {number} of 5")
        seen += shown[:-1]
        view = view.pressed(" ", ["id"])
    assert [line for line in seen if line.startswith("id-")] == [f"id-{n}" for n in range(20)]
    assert view.drawn([many], 80, 6)[0].page == 4
    assert view.drawn([many], 80, 100)[0].page == 0


def test_keys_choose_order_and_filter() -> None:
    view = View(page=3).pressed("s", HEADS)
    assert (view.sort, view.page) == ("model", 0)
    assert view.pressed("s", HEADS).pressed("s", HEADS).pressed("s", HEADS).sort is None
    assert view.pressed("r", HEADS).descending
    for key in ("/", "a", "q", "b", "\x7f"):
        view = view.pressed(key, HEADS)
    assert (view.wanted, view.types, view.ended) == ("aq", True, False)
    assert "filter: aq" in view.drawn([WAITING], 80, 10)[1][-1]
    kept = view.pressed("\r", HEADS)
    assert (kept.wanted, kept.types) == ("aq", False)
    assert view.pressed("\x1b", HEADS) == replace(view, wanted="", types=False)
    assert kept.pressed("q", HEADS).ended
    assert kept.pressed("x", HEADS) == kept


PROGRAM: Final = """
from qlm.cli.inspect.render import table
from qlm.cli.inspect.watching import watch
watch(lambda: [table("many", ("id",), [(f"id-{n}",) for n in range(90)])])
"""


def test_keys_of_a_real_terminal_turn_pages_and_quit() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    try:
        _read_until(ours, b"page 1 of 4")
        os.write(ours, b" ")
        _read_until(ours, b"page 2 of 4")
        os.write(ours, b"q")
        assert process.wait(60) == 0
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        os.close(ours)


def _read_until(terminal: int, wanted: bytes) -> None:
    seen, give_up_s = b"", time.monotonic() + 60
    while wanted not in seen:
        assert time.monotonic() < give_up_s, seen[-500:]
        seen += os.read(terminal, 65_536)
