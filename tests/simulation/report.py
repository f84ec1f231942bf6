"""Tables of a run: seeds per kind of fault, and states reached."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from simulation.faults.plan import KINDS
from simulation.records import Total

_COLUMN: Final = 50
_COLUMNS: Final = 2


def kinds_table(total: Total) -> str:
    """Format the number of seeds with each kind of fault."""
    entries = [f"{kind:{_COLUMN - 9}} {total.kinds[kind]:7}" for kind in KINDS]
    return _table("seeds with each kind of fault:", entries)


def states_table(coverage: Counter[str]) -> str:
    """Format the occurrences of each fault and state."""
    entries = [f"{what:{_COLUMN - 9}.{_COLUMN - 9}} {count:7}" for what, count in sorted(coverage.items())]
    return _table("faults and states reached:", entries)


def _table(title: str, entries: Sequence[str]) -> str:
    rows = -(-len(entries) // _COLUMNS)
    return "\n".join([title, *("  " + "  ".join(entries[row::rows]) for row in range(rows))])
