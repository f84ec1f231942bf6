"""Tables of a figure: for people, and as CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, fields

from qlm.cli.figures.figure import Figure, Row, Rows, mean
from qlm.cli.figures.measures import Measures
from qlm.cli.inspect.layout import Table
from qlm.cli.inspect.render import table


def shown(figure: Figure, rows: Rows) -> Table:
    """Return the table of a figure: one line per arm and point, means over the seeds."""
    axis = [f"{figure.axis}>"] if figure.axis else []
    lines = []
    for point, arm in dict.fromkeys((each.point, each.arm) for each in rows):
        cells = [f"{mean(rows, arm, name, point):.3g}" for name in figure.shown]
        lines.append([*([f"{point:g}"] if axis else []), arm, *cells])
    return table(figure.title, [*axis, "policy", *(f"{name}>" for name in figure.shown.values())], lines)


def claims(figure: Figure, rows: Rows) -> Table:
    """Return what the paper says beside the same figures here."""
    lines = [[claim.text, claim.paper, claim.ours(rows)] for claim in figure.claims]
    return table(figure.source, ["claim", "paper", "here"], lines)


def rows_csv(figure: Figure, rows: Sequence[Row]) -> str:
    """Return all measures of all runs; equal seeds give equal bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_axis(figure), "policy", "seed", *(each.name for each in fields(Measures))])
    for row in rows:
        values = (f"{value:.6g}" for value in asdict(row.measures).values())
        writer.writerow([f"{row.point:g}", row.arm, row.seed, *values])
    return text.getvalue()


def plain(figure: Figure, rows: Rows) -> dict[str, object]:
    """Return rows and claims for JSON."""
    return {
        "title": figure.title,
        "source": figure.source,
        "rows": [
            {_axis(figure): row.point, "policy": row.arm, "seed": row.seed, **asdict(row.measures)}
            for row in rows
        ],
        "claims": [
            {"claim": each.text, "paper": each.paper, "here": each.ours(rows)} for each in figure.claims
        ],
    }


def _axis(figure: Figure) -> str:
    return figure.axis or "load"
