"""Tables on a terminal that are drawn anew every second, with keys to page, sort and filter."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.live import Live
from rich.text import Text

from qlm.cli.inspect.console import console
from qlm.cli.inspect.layout import Table
from qlm.cli.inspect.view import View

WATCH_S: Final = 1.0
"""Time between two looks at the gateway."""

_KEY_BYTES_MAX: Final = 16


def watch(look: Callable[[], Sequence[Table]]) -> None:
    """Show tables on the whole terminal, anew every second, until the reader quits.

    Without a terminal to read keys from, they are shown from the top.

    Args:
        look: Asks the gateway, and lays out the tables.
    """
    out, view = console(), View()
    with _keys() as next_key, Live(console=out, screen=True, auto_refresh=False) as live:
        while not view.ended:
            tables = look()
            headings = [each.name for table in tables for each in table.columns]
            next_look_s = time.monotonic() + WATCH_S
            while not view.ended:
                view, lines = view.drawn(tables, out.width, out.height)
                live.update(Text("\n".join(lines), no_wrap=True), refresh=True)
                key = next_key(max(0.0, next_look_s - time.monotonic()))
                if key is None:
                    break
                view = view.pressed(key, headings)


@contextmanager
def _keys() -> Iterator[Callable[[float], str | None]]:
    """Yield a function that waits so many seconds for a key, and returns None if there was none."""
    if not sys.stdin.isatty():
        yield _none
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def next_key(wait_s: float) -> str | None:
        if not select.select([terminal], [], [], wait_s)[0]:
            return None
        return os.read(terminal, _KEY_BYTES_MAX).decode("utf-8", "replace") or "q"

    tty.setcbreak(terminal)
    try:
        yield next_key
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _none(wait_s: float) -> None:
    time.sleep(wait_s)
