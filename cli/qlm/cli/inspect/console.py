"""The console on which tables and sentences about a running QLM are shown."""

from typing import Final

from rich.console import Console

PIPE_COLUMNS: Final = 200


def console() -> Console:
    """Make a console; output that is no terminal is wide enough for any name."""
    made = Console()
    return made if made.is_terminal else Console(width=PIPE_COLUMNS)
