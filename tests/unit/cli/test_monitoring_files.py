"""The dashboard, the alerts and the page of metrics speak of the metrics there are."""

import re
from typing import Any, Final

import pytest

from scripts.metrics_page import Row, page, rows
from support.monitoring_files import DASHBOARD, ROOT, alerts, panels, queries

KNOWN: Final = {row.name: row for row in rows()}
_METRIC = re.compile(r"\bqlm_[a-z0-9_]+")
_MATCHERS = re.compile(r"(\bqlm_[a-z0-9_]+)\{([^}]*)\}")


def row_of(name: str) -> Row:
    """The metric that a name in a query is a series of.

    Raises:
        KeyError: There is none.
    """
    if name in KNOWN:
        return KNOWN[name]
    base, _, suffix = name.rpartition("_")
    row = KNOWN[base]
    suffixes = {"histogram": ("bucket", "sum", "count"), "summary": ("sum", "count")}
    if suffix not in suffixes.get(row.kind, ()):
        raise KeyError(name)
    return row


def labels_in(text: str) -> set[str]:
    """Labels that a query groups by; those of ours that start with qlm_ are no metrics."""
    return {label.strip() for group in re.findall(r"by \(([^)]*)\)", text) for label in group.split(",")}


def test_every_query_refers_to_metrics_and_labels_that_exist() -> None:
    for query in queries():
        by = labels_in(query)
        used = {name: row_of(name) for name in set(_METRIC.findall(query)) - by}
        assert used, f"no metric of QLM in {query}"
        printed = {label for row in used.values() for label in row.labels} | {"le", "namespace"}
        assert by <= printed, f"{query} groups by what no metric in it has"
        for name, matchers in _MATCHERS.findall(query):
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            assert labels <= {*row_of(name).labels, "namespace"}, query


def test_each_query_of_the_dashboard_is_of_the_chosen_namespaces() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert variables["namespace"]["allValue"] == ".*", "series without the label are among all"
    others = [each["definition"] for each in variables.values() if each["name"] == "model"]
    for query in (*others, *(target["expr"] for panel in panels() for target in panel["targets"])):
        names = [name for name in _METRIC.findall(query) if name != "qlm_instance"]
        chosen = [
            matchers for _, matchers in _MATCHERS.findall(query) if 'namespace=~"$namespace"' in matchers
        ]
        assert names and len(chosen) == len(names), query


def test_the_dashboard_shows_what_operators_look_for() -> None:
    shown = {
        row_of(name).name for query in queries() for name in set(_METRIC.findall(query)) - {"qlm_instance"}
    }
    assert shown >= {
        "qlm_gateway_request_slo_attained_total", "qlm_agent_request_queue_duration_seconds",
        "qlm_controller_pool_saturation_ratio", "qlm_operations_total", "qlm_model_swaps_thrashed_total",
        "qlm_controller_plan_gap_ratio", "qlm_gateway_dead_letters", "qlm_controller_leader", "qlm_broker_up",
        "qlm_store_up", "qlm_gateway_request_e2e_to_predicted_ratio",
    }  # fmt: skip


def test_panels_are_distinct_and_lie_beside_each_other() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
    for panel in panels():
        assert panel["title"] and panel["description"] and panel["targets"]


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_and_what_it_means(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"Qlm[A-Z][A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}


def test_each_alert_is_shown_to_fire() -> None:
    shown = (ROOT / "monitoring/alerts_test.yaml").read_text("utf-8")
    assert [rule["alert"] for rule in alerts() if f'alertname="{rule["alert"]}"' not in shown] == []


def test_the_page_of_metrics_is_current_and_whole() -> None:
    written = (ROOT / "docs/metrics.md").read_text("utf-8")
    assert written == page(), "run: python scripts/metrics_page.py > docs/metrics.md"
    assert all(row.about and f"| `{row.name}` |" in written for row in KNOWN.values())
