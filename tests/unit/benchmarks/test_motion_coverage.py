"""Intervals of group completion in a simulation of models that share an instance."""

from pathlib import Path

from benchmarks.motion.coverage import run

SCENARIO = """
name: two-models
models:
- {id: one, profile: mistral-7b}
- {id: two, profile: vicuna-13b}
instances:
- {id: gpu-0, accelerator: A100, models: [one, two], host_memory_gib: 128}
slo_classes:
  chat: {ttft_ms: 20000}
  report: {deadline_ms: 90000}
workload:
- name: one
  arrivals: {poisson: {rate_rps: 2.0, duration_s: 120, start_s: 0}}
  lengths:
    prompt_tokens: {lognormal: {median: 300, sigma: 0.6, max: 2000}}
    output_tokens: {lognormal: {median: 150, sigma: 0.8, max: 700}}
  model: one
  max_tokens: {at_least_output: 1024}
  slo: {shares: {chat: 0.5, report: 0.5}}
- name: two
  arrivals: {poisson: {rate_rps: 2.0, duration_s: 120, start_s: 0}}
  lengths:
    prompt_tokens: {lognormal: {median: 300, sigma: 0.6, max: 2000}}
    output_tokens: {lognormal: {median: 150, sigma: 0.8, max: 700}}
  model: two
  max_tokens: {at_least_output: 1024}
  slo: {shares: {chat: 0.5, report: 0.5}}
"""


def test_corrected_intervals_cover_what_the_plan_alone_does_not(tmp_path: Path) -> None:
    """Agents serve in visits: a plan that swaps at once is wrong by more than its variance says."""
    path = tmp_path / "two-models.yaml"
    path.write_text(SCENARIO, "utf-8")
    figures = run(path, "qlm", 1.0, 1, 480)
    forecasts = figures["groups_formed"] + figures["groups_waiting"]
    inside = sum(
        figures[f"groups_{each}"] * (figures[f"in_corrected_{each}"] or 0.0) for each in ("formed", "waiting")
    )
    assert forecasts > 30
    assert 0.8 <= inside / forecasts <= 1.0
    assert inside / forecasts > (figures["in_planned"] or 0.0)
