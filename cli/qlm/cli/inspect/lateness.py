"""How many of the latest requests of each class met their objective."""

from collections.abc import Mapping
from typing import Any

from qlm.cli.inspect.layout import Table
from qlm.cli.inspect.render import span, table

_COLUMNS = ("model", "objective", "priority>", "judged>", "met>", "late>", "mean late>", "most late>")


def attainment_table(data: Mapping[str, Any]) -> Table:
    """Lay out the attainment of classes, as `/admin/v1/queues` lists it."""
    return table(
        "objectives: of the latest 500 requests that ended in the last 10 minutes",
        _COLUMNS,
        (
            (
                each["model"],
                each["slo_class"],
                each["priority"],
                each["judged"],
                f"{1 - each['missed'] / each['judged']:.1%}",
                each["missed"],
                *(None if late_s is None else span(late_s) for late_s in _lateness(each)),
            )
            for each in data.get("attainment", ())  # a gateway of an earlier version has none
        ),
    )


def _lateness(each: Mapping[str, Any]) -> tuple[float | None, float | None]:
    return each["mean_late_by_s"], each["max_late_by_s"]
