"""The dashboard and the alert rules, read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
DASHBOARD: Final = json.loads((ROOT / "monitoring/grafana-dashboard.json").read_text("utf-8"))
ALERTS: Final = yaml.safe_load((ROOT / "monitoring/alerts.yaml").read_text("utf-8"))


def alerts() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[str]:
    """All expressions of dashboard and alerts."""
    yield from (target["expr"] for panel in panels() for target in panel["targets"])
    yield from (rule["expr"] for rule in alerts())
