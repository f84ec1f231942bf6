"""Urgent requests beside batch work on one instance."""

from pathlib import Path

import pytest

from qlm.cli.scenario.workload import draw_scenario
from qlm.simulator.report import summary
from qlm.simulator.rules import policy_named
from qlm.simulator.simulation import simulate

MIXED = """
name: chat beside bulk
models:
- {id: m, profile: llama-3-8b}
instances:
- {id: i0, accelerator: A100, gpus: 1, models: [m]}
slo_classes:
  chat: {ttft_ms: 2000}
  bulk: {}
workload:
- name: bulk
  arrivals: {on_off: {rate_rps: 10, on_s: 10, off_s: 50, duration_s: 120, start_s: 0}}
  lengths:
    prompt_tokens: {lognormal: {median: 4000, sigma: 0.4, max: 8000}}
    output_tokens: {lognormal: {median: 200, sigma: 0.5, max: 800}}
  model: m
  max_tokens: {at_least_output: 1024}
  slo: {shares: {bulk: 1.0}}
- name: chat
  arrivals: {poisson: {rate_rps: 1.0, duration_s: 120, start_s: 0}}
  lengths:
    prompt_tokens: {lognormal: {median: 400, sigma: 0.5, max: 2000}}
    output_tokens: {lognormal: {median: 200, sigma: 0.5, max: 800}}
  model: m
  max_tokens: {at_least_output: 1024}
  slo: {shares: {chat: 1.0}}
"""


@pytest.mark.parametrize("policy", ["qlm", "edf+rules"])
def test_chats_are_not_late_behind_prompts_of_batch_work(tmp_path: Path, policy: str) -> None:
    """Two thirds of them were: an idle engine was given all prompts of a burst, half a minute of work."""
    path = tmp_path / "mixed.yaml"
    path.write_text(MIXED)
    drawn = draw_scenario(path, 1)
    result = simulate(drawn.scenario, policy_named(policy), 1, stopwatch_s=lambda: 0.0)
    assert summary(result, drawn.streams)["attainment_by_class"]["chat"] >= 0.98
