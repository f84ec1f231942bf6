"""The console on which tables and sentences about a running QLM are shown."""

import os
from typing import Final

from rich.console import Console

from qlm.cli.inspect.layout import UNBOUNDED

DRAWING_COLUMNS_MAX: Final = 200
"""Widest drawing, also on a console that is no terminal."""


def console() -> Console:
    """Make a console; it is unbounded, so that tables are tab-separated, without a terminal and COLUMNS."""
    made = Console()
    bounded = made.is_terminal or os.environ.get("COLUMNS", "").isdecimal()
    return made if bounded else Console(width=UNBOUNDED)
