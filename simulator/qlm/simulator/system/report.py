"""What trials covered, and what happened in one, as text."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from qlm.simulator.system.history import Event
from qlm.simulator.system.trial import Trial

_COLUMN: Final = 50
_COLUMNS: Final = 2


def coverage_table(coverage: Counter[str]) -> str:
    """Write how often each fault happened and each state was reached."""
    lines = ["faults and states reached:"]
    entries = [f"{what:{_COLUMN - 9}.{_COLUMN - 9}} {count:7}" for what, count in sorted(coverage.items())]
    rows = -(-len(entries) // _COLUMNS)
    for row in range(rows):
        lines.append("  " + "  ".join(entries[row::rows]))
    return "\n".join(lines)


def story(trial: Trial) -> Iterator[str]:
    """Tell the events of a trial, one line each."""
    for event in trial.events:
        yield f"{event.at_s:9.4f}  {type(event).__name__:10} {_said(event)}"


def _said(event: Event) -> str:
    fields = zip(event._fields[1:], event[1:], strict=True)
    return " ".join(f"{name}={value}" for name, value in fields)
