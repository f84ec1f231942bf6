"""Batch policies in simulations of a whole cluster."""

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from qlm.agents.batching.decision import BatchPolicy, Decision
from qlm.agents.batching.policies import registry
from qlm.agents.batching.view import View
from qlm.cli.config.errors import ConfigError
from qlm.cli.scenario.file import load_scenario
from qlm.simulator.cluster.clients import request_number
from qlm.simulator.policies import POLICIES
from qlm.simulator.report import requests_csv, summary
from qlm.simulator.results import SimulationResult
from qlm.simulator.scenario import Scenario
from qlm.simulator.simulation import simulate
from support.random_policy import RandomPolicy, check

EXAMPLES = sorted((Path(__file__).parents[3] / "examples/scenarios").glob("*.yaml"))

CROWDED = """
name: crowded
models: [{id: llama-3-8b, context_tokens: 4096}]
instances: [{id: a10-0, accelerator: A10, models: [llama-3-8b]BATCHING}]
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


def crowded(tmp_path: Path, batching: str | None) -> Scenario:
    file = tmp_path / "crowded.yaml"
    file.write_text(CROWDED.replace("BATCHING", f", batching: {batching}" if batching else ""))
    return load_scenario(file)


def run(scenario: Scenario, seed: int = 1) -> SimulationResult:
    clock = count()
    return simulate(scenario, POLICIES["edf"], seed, stopwatch_s=lambda: float(next(clock)))


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


def test_an_unknown_policy_is_refused_with_the_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batching is 'nosuch'; expected one of fcfs"):
        crowded(tmp_path, "nosuch")
