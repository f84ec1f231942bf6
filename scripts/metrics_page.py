"""Write docs/metrics.md from the metrics themselves: python scripts/metrics_page.py > docs/metrics.md"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.telemetry import Telemetry
from qlm.gateway.observability.metrics import GatewayMetrics

HEAD = """\
# Metrics

Written by `scripts/metrics_page.py` from the code; do not edit.

Prometheus scrapes `/metrics` of each process. A gateway serves it for operators on `admin.port` (8090), \
with the metrics of all parts in its process (`qlm serve` runs all parts in one). A process without a \
gateway (controller, agent, `qlm agents`, each Ray actor) serves it on the first free port from \
`monitor.port` (8002) on, and logs the port. `/healthz` and `/readyz` are on the same port. \
[monitoring.md](monitoring.md#metrics) has a configuration.

Cluster-wide metrics (queues, groups, leases, the plan) come from the leading controller only; the \
others export `qlm_controller_leader` 0. Label values are bounded: models, accelerators and \
instances are those of the configuration. The first 100 SLOs (`slo_class`) have a label of their \
own, later ones share `other`. Demoted requests have the label `late="true"`.

`monitoring/grafana-dashboard.json` shows the metrics, `monitoring/alerts.yaml` holds rules for \
Prometheus. To scale worker groups with KEDA, use `max by (accelerator) \
(qlm_controller_recommended_instances)`: live instances plus those whose addition would let the \
waiting requests meet their SLOs. It is computed at most every 30 s, while the plan misses an SLO. \
Instances that still load count as ready. It never recommends removing instances, and it is unknown \
for accelerators without a live instance.

Engines have metrics of their own (`vllm:...`) at the addresses that their agents start them on.
"""

SECTIONS = (
    ("Gateway", ("qlm_gateway_",)),
    ("Controller", ("qlm_controller_",)),
    ("Agent", ("qlm_agent_", "qlm_operation", "qlm_model_swap")),
    ("Every process", ("qlm_",)),
)


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One metric, by the name that queries use."""

    name: str
    kind: str
    labels: tuple[str, ...]
    about: str


class RecordingRegistry(CollectorRegistry):
    """Knows its collectors."""

    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        self.collectors.append(collector)


def rows() -> list[Row]:
    """All metrics of QLM, by name."""
    registry = RecordingRegistry()
    Telemetry(SystemClock(), controller=True, agents=True, registry=registry)
    GatewayMetrics(1, registry)
    return sorted(row for each in registry.collectors for row in _rows(each) if row.name.startswith("qlm_"))


def _rows(collector: Collector) -> Iterator[Row]:
    describe = getattr(collector, "describe", None)
    if describe is None:
        return
    for family in describe():
        # A metric that the library keeps has its labels itself, one that is made when scraped has its own.
        labels: Iterable[str] = getattr(collector, "_labelnames", ()) or getattr(family, "_labelnames", ())
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield Row(name, family.type, tuple(labels), family.documentation)


def page() -> str:
    """The whole page."""
    left = rows()
    parts = [HEAD]
    for title, prefixes in SECTIONS:
        mine = [row for row in left if row.name.startswith(prefixes)]
        left = [row for row in left if row not in mine]
        parts.append(f"\n## {title}\n\n| name | type | labels | what it reports |\n|---|---|---|---|\n")
        parts += [_line(row) for row in mine]
    return "".join(parts)


def _line(row: Row) -> str:
    labels = ", ".join(f"`{label}`" for label in row.labels)
    return f"| `{row.name}` | {row.kind} | {labels} | {row.about} |\n"


if __name__ == "__main__":
    print(page(), end="")
