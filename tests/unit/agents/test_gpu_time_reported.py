"""The account of GPU time as operators see it: metrics of agents, and the log of idle time."""

import logging

import pytest
from prometheus_client import CollectorRegistry

from qlm.agents.core.stats.gpu_time import Activity, GpuTime, GpuUse
from qlm.agents.shell.idle_log import idle_log
from qlm.agents.shell.metrics import AgentMetrics
from qlm.domain.ids import InstanceId, ModelId
from support.agent_bench import HOLDER, Bench, M, N, group_of
from support.requests import a_request

S = 1_000_000_000


def test_metrics_have_the_seconds_of_each_use_and_the_longest_idle_time() -> None:
    bench = Bench()
    registry = CollectorRegistry()
    AgentMetrics(registry).add(bench.agent)
    bench.later(2.5)
    bench.start(a_request("r"))
    bench.later(4.0)

    def seconds(name: str, use: GpuUse) -> float | None:
        return registry.get_sample_value(name, {"qlm_instance": HOLDER.instance, "use": use.value})

    assert seconds("qlm_agent_gpu_seconds_total", GpuUse.USEFUL) == 4.0
    assert seconds("qlm_agent_gpu_seconds_total", GpuUse.IDLE) == 2.5
    assert sum(seconds("qlm_agent_gpu_seconds_total", use) or 0.0 for use in GpuUse) == 6.5
    assert seconds("qlm_agent_idle_longest_seconds", GpuUse.IDLE_AWAKE) == 0.0
    bench = Bench()
    AgentMetrics(registry := CollectorRegistry()).add(bench.agent)
    bench.queue(group_of(a_request("b", model=N), name="b"))
    bench.later(0.05)
    assert seconds("qlm_agent_idle_longest_seconds", GpuUse.IDLE_LOADABLE) == 0.05


def test_long_idle_time_beside_work_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "qlm.agents")
    account = GpuTime(idle_log(InstanceId("i")))
    idle = Activity.idle(M, (N, ModelId("o")), "a reason")
    for activity, now_s in ((idle, 0), (Activity.idle(M, ()), 3), (idle, 60), (Activity.idle(M, ()), 61)):
        account.observe(activity, now_s * S)
    account.close()
    assert [each.message for each in caplog.records] == [
        "i: idle for 3.0 s with m awake while n, o waited: a reason"
    ]
