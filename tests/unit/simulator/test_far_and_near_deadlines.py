"""Objectives of seconds beside those of many minutes, and answers for which there is no capacity."""

from pathlib import Path
from typing import Any

import pytest

from qlm.cli.scenario.workload import draw_scenario
from qlm.simulator.report import summary
from qlm.simulator.rules import policy_named
from qlm.simulator.simulation import simulate

REPORTS = """
name: reports beside chats and completions
models: [{id: llama-3-8b}, {id: mistral-7b}, {id: vicuna-13b}]
instances: [{id: a, count: 2, accelerator: A100, models: [llama-3-8b, mistral-7b, vicuna-13b]}]
slo_classes: {chat: {ttft_ms: 5000}, code: {ttft_ms: 2000}, report: {deadline_ms: 600000}}
workload:
- name: chat
  arrivals: {poisson: {rate_rps: 0.6, duration_s: 900}}
  lengths: {prompt_tokens: {constant: 500}, output_tokens: {uniform: {min: 50, max: 400}}}
  model: llama-3-8b
  slo: chat
- name: code
  arrivals: {poisson: {rate_rps: 0.2, duration_s: 900}}
  lengths: {prompt_tokens: {constant: 1200}, output_tokens: {uniform: {min: 10, max: 60}}}
  model: mistral-7b
  slo: code
- name: report
  arrivals: {poisson: {rate_rps: 0.15, duration_s: 900}}
  lengths: {prompt_tokens: {constant: 1500}, output_tokens: {uniform: {min: 100, max: 200}}}
  model: vicuna-13b
  slo: report
"""

OVERLOAD = """
name: answers due in half a minute, at 1.4 times the capacity
models: [{id: llama-3-8b}]
instances: [{id: a, accelerator: A10, models: [llama-3-8b]}]
slo_classes: {chat: {deadline_ms: 30000}}
workload:
- arrivals: {poisson: {rate_rps: 4.2, duration_s: 300}}
  lengths:
    prompt_tokens: {lognormal: {median: 500, sigma: 0.8, max: 1500}}
    output_tokens: {lognormal: {median: 200, sigma: 0.7, max: 500}}
  model: llama-3-8b
  slo: chat
"""

FULL = """
name: completions beside answers on full instances
models: [{id: llama-3-8b}]
instances: [{id: a, accelerator: A10, models: [llama-3-8b]}]
slo_classes: {code: {ttft_ms: 2000}, report: {deadline_ms: 600000}, batch: {}}
workload:
- arrivals: {poisson: {rate_rps: 0.7, duration_s: 300}}
  lengths: {prompt_tokens: {constant: 1200}, output_tokens: {uniform: {min: 10, max: 60}}}
  model: llama-3-8b
  slo: code
- arrivals: {poisson: {rate_rps: 3.0, duration_s: 300}}
  lengths: {prompt_tokens: {constant: 500}, output_tokens: {uniform: {min: 100, max: 500}}}
  model: llama-3-8b
  slo: {shares: {report: 0.5, batch: 0.5}}
"""


def simulated(tmp_path: Path, scenario: str, policy: str = "qlm") -> dict[str, Any]:
    path = tmp_path / "scenario.yaml"
    path.write_text(scenario)
    drawn = draw_scenario(path, 1)
    result = simulate(drawn.scenario, policy_named(policy), 1, stopwatch_s=lambda: 0.0)
    return summary(result, drawn.streams)


def test_completions_are_not_missed_for_reports_that_can_wait(tmp_path: Path) -> None:
    """An idle instance served each report at once: four completions of ten were late for it."""
    met = simulated(tmp_path, REPORTS)["attainment_by_class"]
    assert min(met["chat"], met["report"]) > 0.99
    assert met["code"] > 0.8


@pytest.mark.parametrize("policy", ["qlm", "edf+rules"])
def test_an_overloaded_class_starts_those_that_still_have_time(tmp_path: Path, policy: str) -> None:
    """All waited until they could just be in time, started then, and most of them were late."""
    assert simulated(tmp_path, OVERLOAD, policy)["attainment"] > 0.45


def test_a_full_batch_computes_little_again_for_urgent_requests(tmp_path: Path) -> None:
    """Each completion evicted some others at once, which came back, and were evicted for the next one."""
    found = simulated(tmp_path, FULL)
    assert found["attainment_by_class"]["code"] > 0.8
    assert found["gpu_time"]["again"] < 0.08
