"""Tables on a terminal that are drawn anew every second, with keys to page, sort and filter."""

import codecs
import os
import re
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from qlm.cli.inspect.admin_client import AdminError
from qlm.cli.inspect.console import console
from qlm.cli.inspect.layout import Table
from qlm.cli.inspect.view import View

WATCH_S: Final = 1.0
"""Time between two looks at the gateway."""

Look = Callable[[], Sequence[Table]]

_READ_BYTES: Final = 4096
_REST_S: Final = 0.05
"""Time for the rest of a sequence whose start has come; after it, the start was the key escape."""

_KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|.", re.DOTALL)
_START: Final = re.compile(r"\x1b(?:\[[0-9;]*|O)?\Z")


def watch(look: Look) -> None:
    """Show tables on the whole terminal, anew every second, until the reader quits.

    Without a terminal to read keys from, they are shown from the top. Where the output is no terminal, or one
    that cannot move its cursor, all tables are printed every second. A look that fails after the first one
    is reported, and repeated.

    Args:
        look: Asks the gateway, and lays out the tables.

    Raises:
        AdminError: The first look failed.
    """
    out = console()
    first = look()
    if out.is_terminal and not out.is_dumb_terminal:
        _draw(out, first, look)
    else:
        _print(out, first, look)


def _looked(look: Look, before: Sequence[Table]) -> tuple[Sequence[Table], str]:
    """Return new tables, or those before with what went wrong."""
    try:
        return look(), ""
    except AdminError as error:
        return before, str(error)


def _print(out: Console, tables: Sequence[Table], look: Look) -> None:
    wrong = said = ""
    while True:
        if not wrong:
            out.print(Group(*tables), crop=False)
        elif wrong != said:
            click.echo(f"qlm: {wrong}", err=True)
        said = wrong
        time.sleep(WATCH_S)
        tables, wrong = _looked(look, tables)


def _draw(out: Console, tables: Sequence[Table], look: Look) -> None:
    view, wrong = View(), ""
    with _keys() as next_key, Live(console=out, screen=True, auto_refresh=False) as live:
        while not view.ended:
            headings = [each.name for table in tables for each in table.columns]
            next_look_s = time.monotonic() + WATCH_S
            while not view.ended:
                view, lines = view.drawn(tables, out.width, out.height, wrong)
                live.update(Text("\n".join(lines), no_wrap=True), refresh=True)
                key = next_key(max(0.0, next_look_s - time.monotonic()))
                if key is None:
                    break
                view = view.pressed(key, headings)
            if not view.ended:
                tables, wrong = _looked(look, tables)


class Keys:
    """Keys that come from a terminal; several may come in one read, and one in several.

    Args:
        terminal: Descriptor of a terminal that passes each key on at once.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending: deque[str] = deque()

    def next(self, wait_s: float) -> str | None:
        """Return the next key, or None if none comes for so many seconds; `q` after the end."""
        if not self._pending and self._waits(wait_s):
            text = self._read()
            while _START.search(text) and self._waits(_REST_S):
                text += self._read()
            self._pending.extend(_KEY.findall(text))
        return self._pending.popleft() if self._pending else None

    def _waits(self, wait_s: float) -> bool:
        return bool(select.select([self._terminal], [], [], wait_s)[0])

    def _read(self) -> str:
        read = os.read(self._terminal, _READ_BYTES)
        return self._decoder.decode(read) if read else "q"


@contextmanager
def keys_of(terminal: int) -> Iterator[Keys]:
    """Yield the keys of a terminal, each when it is pressed; afterwards the terminal is as before."""
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield Keys(terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextmanager
def _keys() -> Iterator[Callable[[float], str | None]]:
    """Yield a function that waits so many seconds for a key of the reader; without a terminal, none comes."""
    if not sys.stdin.isatty():
        yield _none
        return
    with keys_of(sys.stdin.fileno()) as keys:
        yield keys.next


def _none(wait_s: float) -> None:
    time.sleep(wait_s)
