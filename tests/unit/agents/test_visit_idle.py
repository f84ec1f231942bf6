"""An idle instance beside work for a model that takes long to start: when it leaves, and when it does not."""

from dataclasses import replace

from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import QueueRead
from qlm.agents.core.state import AgentSettings
from qlm.domain.actions import Pull, SwapModel
from qlm.domain.group import Group
from qlm.domain.request import Request
from qlm.domain.virtual_queue import ClassForecast, VirtualQueue
from qlm.rct_estimator.host_memory import SwapCost
from support.agent_bench import HOLDER, Bench, M, N, S, group_of
from support.requests import a_request

START_S = 50.0


def idle_bench(*, warm_s: float = START_S) -> Bench:
    """Return an agent whose first model is awake; each swap is a start, or each first one."""
    cost = SwapCost(weights_bytes=1, warm_s=warm_s, reload_s=START_S, cold_s=START_S)
    costs = OperationCosts(swap=dict.fromkeys((M, N), cost), host_memory_bytes=2 * (warm_s < START_S))
    bench = Bench(settings=AgentSettings(visits=True), costs=costs)
    bench.take(SwapModel)
    return bench


def arrived(request: Request, count: int, name: str) -> Group:
    return replace(group_of(request, count, name), last_arrival_ns=request.arrival_ns)


def read(bench: Bench, *groups: Group, forecasts: tuple[ClassForecast, ...]) -> None:
    bench.send(QueueRead(queue=VirtualQueue(instance=HOLDER.instance, groups=groups, forecasts=forecasts)))


def forecast(request: Request, rate_rps: float) -> ClassForecast:
    return ClassForecast(cls=request.cls, service_s=0.1, answer_s=1.0, rate_rps=rate_rps)


def test_a_late_request_does_not_wait_until_rare_arrivals_are_forgotten() -> None:
    """Nobody had demoted it, so it had no patience: one waited for an hour on an idle instance."""
    bench = idle_bench()
    here = a_request("here", deadline_ms=10_000)
    late = a_request("late", model="n", deadline_ms=10_000, arrival_ns=bench.now_ns)
    bench.later(30.0)
    read(bench, arrived(late, 1, "late"), forecasts=(forecast(here, 0.02), forecast(late, 0.0)))
    bench.later(1.0)
    assert not bench.take(SwapModel)  # it weighs less than an arrival
    while not bench.take(SwapModel):
        bench.later(0.2)
        assert bench.now_ns < late.arrival_ns + 900 * S


def test_work_of_the_awake_model_ends_the_idle_time_at_once() -> None:
    """The decision at its arrival still took the instance for idle, and left for a start of a minute."""
    bench = idle_bench()
    bench.later(1000.0)
    here = a_request("here", deadline_ms=2000, arrival_ns=bench.now_ns)
    there = a_request("there", model="n", deadline_ms=2000, arrival_ns=bench.now_ns)
    groups = arrived(there, 3, "there"), arrived(here, 3, "here")
    read(bench, *groups, forecasts=(forecast(here, 10.0), forecast(there, 10.0)))
    assert not bench.take(SwapModel)
    assert [pull.group for pull in bench.take(Pull)] == ["here"]


def test_a_report_that_is_due_in_ten_minutes_waits_for_its_last_one_beside_completions() -> None:
    """It was started after five minutes, and each completion of a minute and more was late."""
    bench = idle_bench()
    own = a_request("own", deadline_ms=2000)
    report = a_request("report", model="n", deadline_ms=600_000, arrival_ns=bench.now_ns)
    sent = forecast(own, 0.005), forecast(report, 0.0)
    while not bench.take(SwapModel):
        bench.agent.state.visit.idle_ns = bench.now_ns  # as if a completion had just ended
        read(bench, arrived(report, 1, "report"), forecasts=sent)
        bench.later(1.0)
        assert bench.now_ns < report.arrival_ns + 600 * S
    assert bench.now_ns > report.arrival_ns + 500 * S


def test_a_start_is_no_gain_for_arrivals_that_another_instance_is_to_serve() -> None:
    """Found with three models on two instances: chats of a minute were missed for a start for one report."""
    chat, report = a_request("chat", deadline_ms=20_000), a_request("r", model="n", deadline_ms=600_000)
    left = []
    for homes in ((M,), (M, N)):
        bench = idle_bench(warm_s=2.0)
        waiting = arrived(replace(report, arrival_ns=bench.now_ns), 1, "r")
        sent = forecast(chat, 0.2), forecast(report, 0.2)
        queue = VirtualQueue(instance=HOLDER.instance, groups=(waiting,), forecasts=sent, homes=homes)
        bench.send(QueueRead(queue=queue))
        bench.later(1.0)
        left.append(bool(bench.take(SwapModel)))
    assert left == [False, True]
