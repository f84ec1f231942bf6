"""Draws virtual queues over time as rows of letters."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from rich.text import Text

from qlm.cli.inspect.render import span
from qlm.domain.ids import GroupId, ModelId
from qlm.planner.problem import Problem
from qlm.planner.verify.referee import GroupRow, Report

LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
"""One per model; more models share them."""

COLOURS: Final = (
    "cyan",
    "green",
    "yellow",
    "magenta",
    "blue",
    "bright_cyan",
    "bright_green",
    "bright_magenta",
)
ROWS_MAX: Final = 60
"""Largest number of instances drawn."""

LABEL_COLUMNS_MAX: Final = 24
COLUMNS_MIN: Final = 20
BUSY, SWAP = "·", "░"
TICKS: Final = 5

MOSTLY: Final = 0.5
"""Share of a group's requests in time below which it is drawn as late."""


@dataclass(frozen=True, slots=True)
class _Style:
    """Letter and colour of each model, and the model of each group."""

    letter: dict[ModelId, str]
    colour: dict[ModelId, str]
    model: dict[GroupId, ModelId]

    @classmethod
    def of(cls, problem: Problem) -> "_Style":
        models = sorted({group.model for group in problem.groups})
        return cls(
            letter={model: LETTERS[at % len(LETTERS)] for at, model in enumerate(models)},
            colour={model: COLOURS[at % len(COLOURS)] for at, model in enumerate(models)},
            model={group.id: group.model for group in problem.groups},
        )


def gantt(problem: Problem, report: Report, columns: int) -> Iterator[Text]:
    """Draw one line per instance: models over time, swaps, and groups expected to be late."""
    instances = sorted(problem.instances, key=lambda each: each.id)
    ends_s = [row.completion.mean for row in report.rows]
    horizon_s = max([*ends_s, *(each.busy.mean for each in instances)], default=0.0)
    if not horizon_s > 0:
        return
    label = min(LABEL_COLUMNS_MAX, max(len(each.id) for each in instances))
    width = max(COLUMNS_MIN, columns - label - 1)
    queues = {id: list(rows) for id, rows in groupby(report.rows, key=lambda row: row.instance)}
    style = _Style.of(problem)
    yield Text(" " * (label + 1) + _axis(horizon_s, width), style="dim")
    for instance in instances[:ROWS_MAX]:
        line = Text(instance.id[:label].ljust(label + 1))
        rows = queues.get(instance.id, [])
        for cell, row in _cells(rows, instance.busy.mean, horizon_s, width):
            line.append(*_mark(cell, row, style))
        yield line
    if len(instances) > ROWS_MAX:
        yield Text(f"… {len(instances) - ROWS_MAX} more instances")
    yield _legend({style.model[row.group] for row in report.rows}, style)


def _cells(
    rows: Sequence[GroupRow], busy_s: float, horizon_s: float, width: int
) -> Iterator[tuple[str, GroupRow | None]]:
    """Yield the content of each column: the activity at the middle of its time."""
    begins: list[tuple[float, str, GroupRow | None]] = [(0.0, BUSY, None)]
    for row in rows:
        begins.append((row.start.mean - row.swap_s, SWAP, row))
        begins.append((row.start.mean, "", row))
    begins.append((rows[-1].completion.mean if rows else busy_s, " ", None))
    at = 0
    for column in range(width):
        middle_s = (column + 0.5) / width * horizon_s
        while at + 1 < len(begins) and begins[at + 1][0] <= middle_s:
            at += 1
        yield begins[at][1], begins[at][2]


def _mark(cell: str, row: GroupRow | None, style: _Style) -> tuple[str, str]:
    if cell or row is None:
        return cell, "dim"
    model = style.model[row.group]
    # Neighbours differ in weight, to distinguish groups of one model.
    weight = "" if row.place % 2 else "bold "
    if row.p_met < MOSTLY:
        return style.letter[model].upper(), f"{weight}red"
    return style.letter[model], f"{weight}{style.colour[model]}"


def _axis(horizon_s: float, width: int) -> str:
    line = ""
    for tick in range(TICKS):
        column = tick * width // TICKS
        line = line.ljust(column)[:column] + "|" + span(tick / TICKS * horizon_s) + " "
    end = span(horizon_s) + "|"
    return line.ljust(width)[: width - len(end)] + end


def _legend(models: Iterable[ModelId], style: _Style) -> Text:
    legend = Text()
    for model in sorted(models):
        legend.append(style.letter[model], style.colour[model]).append(f" {model}  ")
    return legend.append(f"CAPITAL: most of the group late  {SWAP} swap  {BUSY} busy", "dim")
