"""Batch policies in simulations of a whole cluster."""

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from qlm.agents.batching.decision import BatchPolicy, Decision
from qlm.agents.batching.policies import registry
from qlm.agents.batching.view import View
from qlm.agents.core.request import PREEMPTIONS_MAX
from qlm.cli.config.errors import ConfigError
from qlm.cli.scenario.file import load_scenario
from qlm.simulator.cluster.clients import request_number
from qlm.simulator.policies import POLICIES
from qlm.simulator.report import requests_csv, summary
from qlm.simulator.results import SimulationResult
from qlm.simulator.scenario import KillEngine, KillInstance, Scenario
from qlm.simulator.simulation import simulate
from support.random_policy import RandomPolicy, check

EXAMPLES = sorted((Path(__file__).parents[3] / "examples/scenarios").glob("*.yaml"))

ONE_A10 = """models: [{id: llama-3-8b, context_tokens: 4096}]
instances: [{id: a10-0, accelerator: A10, models: [llama-3-8b]BATCHING}]
"""

CROWDED = (
    ONE_A10
    + """name: crowded
slo_classes:
  chat: {ttft_ms: 1000, tokens_per_s: 10}
  report: {deadline_ms: 20000}
  batch: {}
workload:
  - arrivals: {bursts: {count: 90}}
    lengths: {prompt_tokens: {constant: 700}, output_tokens: {uniform: {min: 50, max: 300}}}
    model: llama-3-8b
    slo: chat
  - arrivals: {poisson: {rate_rps: 3, duration_s: 15}}
    lengths: {prompt_tokens: {constant: 300}, output_tokens: {constant: 100}}
    model: llama-3-8b
    slo: report
  - arrivals: {bursts: {count: 20, start_s: 5}}
    lengths: {prompt_tokens: {constant: 100}, output_tokens: {constant: 100}}
    model: llama-3-8b
    slo: batch
"""
)


URGENT = (
    ONE_A10
    + """name: urgent
slo_classes:
  urgent: {deadline_ms: 20000}
  report: {deadline_ms: 240000}
workload:
  - arrivals: {bursts: {count: 120}}
    lengths: {prompt_tokens: {constant: 700}, output_tokens: {uniform: {min: 200, max: 800}}}
    model: llama-3-8b
    slo: report
  - arrivals: {poisson: {rate_rps: 1, duration_s: 40}}
    lengths: {prompt_tokens: {constant: 300}, output_tokens: {constant: 150}}
    model: llama-3-8b
    slo: urgent
"""
)
"""Long answers fill the batch before urgent ones come."""


LABELS = (
    ONE_A10
    + """name: labels
slo_classes:
  chat: {ttft_ms: 1000, tokens_per_s: 10}
  label: {deadline_ms: 5000}
workload:
  - arrivals: {poisson: {rate_rps: 2, duration_s: 40}}
    lengths: {prompt_tokens: {constant: 700}, output_tokens: {uniform: {min: 400, max: 800}}}
    model: llama-3-8b
    slo: chat
  - arrivals: {poisson: {rate_rps: 1, duration_s: 40}}
    lengths: {prompt_tokens: {constant: 300}, output_tokens: {constant: 8}}
    max_tokens: {fixed: 8}
    model: llama-3-8b
    slo: label
"""
)
"""A mean answer takes longer than the deadline of labels, which have eight tokens."""


class LeastServed:
    """Run those with the fewest tokens, decided anew each 0.2 s; it wants to choose among all."""

    def __init__(self) -> None:
        self.most = 0
        self.preempted: dict[str, int] = {}

    def decide(self, view: View) -> Decision:
        check(view)
        self.most = max(self.most, len(view.ids))
        self.preempted |= zip(view.ids, view.preemptions.tolist(), strict=True)
        order = sorted(range(len(view.ids)), key=lambda row: (view.generated[row] // 50, view.arrival_s[row]))
        return Decision(run=tuple(view.ids[row] for row in order[:60]), again_s=view.now_s + 0.2)

    def room(self, view: View) -> int:
        return 1000 - len(view.ids)


def crowded(tmp_path: Path, batching: str | None, *, aborts: bool = False, text: str = CROWDED) -> Scenario:
    file = tmp_path / "crowded.yaml"
    file.write_text(text.replace("BATCHING", f", batching: {batching}" if batching else ""))
    scenario = load_scenario(file)
    instances = tuple(replace(each, aborts=aborts) for each in scenario.instances)
    return replace(scenario, instances=instances)


def run(scenario: Scenario, seed: int = 1, planner: str = "edf") -> SimulationResult:
    clock = count()
    return simulate(scenario, POLICIES[planner], seed, stopwatch_s=lambda: float(next(clock)))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_first_come_first_served_simulates_the_examples_to_the_byte(file: Path) -> None:
    scenario = load_scenario(file)
    assert all(each.batching is None for each in scenario.instances)
    ported = replace(scenario, instances=tuple(replace(i, batching="fcfs") for i in scenario.instances))
    assert requests_csv(run(ported)) == requests_csv(run(scenario))


def test_a_policy_chooses_among_all_and_no_request_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies: list[LeastServed] = []

    def new() -> BatchPolicy:
        policies.append(LeastServed())
        return policies[-1]

    monkeypatch.setitem(registry.POLICIES, "least-served", new)
    scenario = crowded(tmp_path, "least-served")
    first, second, plain = run(scenario), run(scenario), run(crowded(tmp_path, None))
    assert requests_csv(first) == requests_csv(second), "equal seeds give equal bytes"
    assert max(each.most for each in policies) > 90, "more than the batch has KV blocks for"
    for result in (first, plain):
        assert summary(result)["outcomes"] == {"stop": len(result.workload)}
        assert result.outcomes.tokens.tolist() == result.workload.output_tokens.tolist()
    preemptions = first.outcomes.engine_preemptions
    assert summary(first)["engine_preemptions"] == preemptions.sum() > 0
    seen = {request_number(id): count for each in policies for id, count in each.preempted.items()}
    assert max(seen.values()) > 0 and all(preemptions[row] >= count for row, count in seen.items())
    assert summary(first)["longest_first_token_s"] < summary(plain)["longest_first_token_s"]
    first_s = [summary(result)["latency_by_class"]["chat"]["first_token_p99_s"] for result in (first, plain)]
    assert first_s[0] < first_s[1], "those without a token go first"


@pytest.mark.parametrize("seed", [1, 2])
def test_no_request_is_lost_whatever_a_policy_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setitem(registry.POLICIES, "random", lambda: RandomPolicy(seed))
    result = run(crowded(tmp_path, "random"), seed)
    assert summary(result)["outcomes"] == {"stop": len(result.workload)}
    assert result.outcomes.tokens.tolist() == result.workload.output_tokens.tolist()


@pytest.mark.parametrize("planner", ["edf", "fcfs"])
def test_by_aborts_edf_meets_deadlines_that_the_engines_own_order_misses(
    tmp_path: Path, planner: str
) -> None:
    def met(batching: str, *, aborts: bool) -> tuple[float, SimulationResult]:
        scenario = crowded(tmp_path, batching, aborts=aborts, text=URGENT)
        result = run(scenario, planner=planner)
        assert summary(result)["outcomes"] == {"stop": len(result.workload)}
        assert result.outcomes.tokens.tolist() == result.workload.output_tokens.tolist()
        return summary(result)["attainment_by_class"]["urgent"], result

    plain, _ = met("fcfs", aborts=False)
    aborted, result = met("edf", aborts=True)
    inside, _ = met("edf", aborts=False)
    assert plain < 0.95 and aborted == inside == 1.0
    assert 0 < summary(result)["evictions"] < PREEMPTIONS_MAX * len(result.workload)
    assert requests_csv(met("edf", aborts=True)[1]) == requests_csv(result), "equal seeds give equal bytes"


@pytest.mark.parametrize("seed", [1, 2])
def test_by_aborts_no_request_is_lost_whatever_a_policy_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    policies: list[RandomPolicy] = []

    def new() -> BatchPolicy:
        policies.append(RandomPolicy(seed))
        return policies[-1]

    monkeypatch.setitem(registry.POLICIES, "random", new)
    scenario = crowded(tmp_path, "random", aborts=True)
    name = scenario.instances[0].id
    faults = (KillEngine(at_s=12.0, instance=name), KillInstance(at_s=25.0, instance=name, down_s=5.0))
    result = run(replace(scenario, faults=faults), seed)
    assert summary(result)["outcomes"] == {"stop": len(result.workload)}
    assert result.outcomes.tokens.tolist() == result.workload.output_tokens.tolist()
    assert sum(len(each.views) for each in policies) > 100
    assert summary(result)["evictions"] > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_short_answers_among_long_ones_are_in_time(tmp_path: Path, seed: int) -> None:
    """`unified` gave up each whose deadline a mean answer would miss: 0.83 and 0.90 were in time."""
    result = run(crowded(tmp_path, "unified", text=LABELS), seed, "fcfs")
    assert summary(result)["attainment_by_class"]["label"] == 1.0


def test_by_aborts_the_first_come_are_first_served_to_the_byte(tmp_path: Path) -> None:
    plain = run(crowded(tmp_path, None))
    assert requests_csv(run(crowded(tmp_path, "fcfs", aborts=True))) == requests_csv(plain)


def test_a_scenario_says_who_hosts_the_policy(tmp_path: Path) -> None:
    (instance,) = crowded(tmp_path, "edf").instances
    assert (instance.aborts, instance.engine_batching) == (False, "edf")
    file = tmp_path / "aborts.yaml"
    file.write_text(CROWDED.replace("BATCHING", ", batching: edf, batching_by: aborts"))
    (instance,) = load_scenario(file).instances
    assert (instance.aborts, instance.batching, instance.engine_batching) == (True, "edf", None)


@pytest.mark.parametrize("batching", ["unified", "andes", "tokenflow", "round-robin"])
def test_a_policy_that_aborts_cannot_host_is_refused_with_the_names(tmp_path: Path, batching: str) -> None:
    expected = f"batching_by 'aborts' and the batching '{batching}'; expected one of fcfs, edf, virtual-queue"
    with pytest.raises(ConfigError, match=expected):
        crowded(tmp_path, f"{batching}, batching_by: aborts")


def test_an_unknown_policy_is_refused_with_the_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batching is 'nosuch'; expected one of fcfs"):
        crowded(tmp_path, "nosuch")
