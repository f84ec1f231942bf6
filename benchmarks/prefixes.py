"""Measure what learning the prefix caches' hits gives: `python -m benchmarks.prefixes [SEED ...]`.

Each seed draws conversations of several turns, and documents of which no cache holds anything, writes them as
a scenario to `--folder`, and simulates it with and without the agents' reports of cached prompt tokens. All
else is equal. One JSON line per simulation: the figures of `benchmarks.motion.arms`, and how the answers of
groups compare with their forecasts.
"""

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

from benchmarks.motion.arms import arm_name, figures
from qlm.agents.core.agent import Agent
from qlm.cli.scenario.workload import draw_scenario
from qlm.domain.fleet import InstanceStatus
from qlm.simulator.evaluation.accuracy import accuracy, group_pairs, request_pairs
from qlm.simulator.evaluation.forecasts import ForecastRecorder
from qlm.simulator.rules import policy_named
from qlm.simulator.simulation import simulate

MODELS: Final = ("mistral-7b", "llama-3-8b")
LASTS_S: Final = 300.0
CHAT_RPS: Final = 0.35
"""Conversations that begin per second."""
TURNS: Final = (2, 10)
THINKS_S: Final = 15.0
"""Mean pause before the next question."""
TOKEN_S: Final = 0.03
"""Time per answered token before that pause begins: the trace is drawn before any engine answers."""
CONTEXT_MAX: Final = 8192

SCENARIO: Final = """\
name: multi-turn-{seed}
models: [{{id: mistral-7b, context_tokens: 16384}}, {{id: llama-3-8b, context_tokens: 8192}}]
instances: [{{id: a10, count: 3, accelerator: A10, models: [mistral-7b, llama-3-8b]}}]
slo_classes: {{chat: {{ttft_ms: 5000}}, documents: {{deadline_ms: 60000}}}}
traces: {{chat: {{path: {file}, format: csv}}}}
workload:
  - name: chat
    arrivals: {{trace: chat}}
    lengths: {{trace: chat}}
    models: {{mistral-7b: mistral-7b, llama-3-8b: llama-3-8b}}
    slo: chat
  - name: documents
    arrivals: {{poisson: {{rate_rps: 0.6, duration_s: 300}}}}
    lengths:
      prompt_tokens: {{lognormal: {{median: 2500, sigma: 0.4}}}}
      output_tokens: {{lognormal: {{median: 120, sigma: 0.5}}}}
    model: mistral-7b
    slo: documents
"""


def conversations(seed: int) -> list[dict[str, Any]]:
    """Draw the turns of all conversations, by arrival. A prompt has all earlier prompts and answers in it."""
    random, rows, at_s, number = Random(f"conversations {seed}"), [], 0.0, 0
    while (at_s := at_s + random.expovariate(CHAT_RPS)) < LASTS_S:
        model, number = random.choice(MODELS), number + 1
        turn_s, prompt = at_s, round(random.lognormvariate(6.4, 0.6))
        for _ in range(random.randint(*TURNS)):
            answer = min(800, max(8, round(random.lognormvariate(5.2, 0.6))))
            if turn_s >= LASTS_S or prompt + answer > CONTEXT_MAX:
                break
            rows.append(
                {
                    "arrival_s": round(turn_s, 3),
                    "model": model,
                    "input_tokens": prompt,
                    "output_tokens": answer,
                    "prefix_id": f"{seed}-{number}",
                    "prefix_tokens": prompt,
                }
            )
            turn_s += answer * TOKEN_S + random.expovariate(1 / THINKS_S)
            prompt += answer + max(4, round(random.lognormvariate(4.4, 0.7)))
    return sorted(rows, key=lambda row: row["arrival_s"])


def write_scenario(seed: int, folder: Path) -> Path:
    """Write the trace of a seed and its scenario; return the path of the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, trace = conversations(seed), folder / f"multi-turn-{seed}.csv"
    with trace.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    scenario = folder / f"multi-turn-{seed}.yaml"
    scenario.write_text(SCENARIO.format(seed=seed, file=trace.name), encoding="utf-8")
    return scenario


@contextmanager
def unreported() -> Iterator[None]:
    """Let agents report nothing of prefix caches, as agents of earlier versions do."""
    whole = Agent.status

    def without(agent: Agent) -> InstanceStatus:
        status = whole(agent)
        return replace(status, prompts=(), work=replace(status.work, cached_tokens=0))

    with patch.object(Agent, "status", without):
        yield


def run(scenario: Path, arm: str, load: float, seed: int) -> dict[str, Any]:
    """Simulate one cell; return its figures."""
    drawn, recorder = draw_scenario(scenario, seed, load=load), ForecastRecorder(every=5)
    policy = policy_named(arm)
    result = simulate(drawn.scenario, policy, seed, stopwatch_s=time.perf_counter, observer=recorder)
    groups = accuracy(group_pairs(result, recorder.groups.values()))
    requests = {
        time: accuracy(request_pairs(result, recorder.requests.values(), time))
        for time in ("first_token", "completion")
    }
    return figures(result, drawn.streams) | {
        "cached": round(result.prefix_hits / int(result.workload.prompt_tokens.sum()), 3),
        "groups_in_interval": round(groups.coverage, 3),
        "groups_bias_s": round(groups.bias_s, 2),
        "error_s": {time: round(each.error_mean_s, 2) for time, each in requests.items()},
        "bias_s": {time: round(each.bias_s, 2) for time, each in requests.items()},
        "in_interval": {time: round(each.coverage, 3) for time, each in requests.items()},
    }


def main(arguments: Sequence[str]) -> int:
    """Run all cells and print their figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefixes", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="*", default=[1, 2, 3], metavar="SEED")
    parser.add_argument("--load", type=float, default=1.0, help="factor on all arrival rates [%(default)s]")
    parser.add_argument("--arm", type=arm_name, metavar="ARM", default="qlm", help="[%(default)s]")
    parser.add_argument("--folder", type=Path, default=Path("build/prefixes"), help="[%(default)s]")
    options = parser.parse_args(arguments)
    for seed in options.seeds:
        scenario = write_scenario(seed, options.folder)
        cell = (scenario, options.arm, options.load, seed)
        with_hits = run(*cell)
        with unreported():
            without = run(*cell)
        for learns, found in ((True, with_hits), (False, without)):
            print(json.dumps({"seed": seed, "load": options.load, "learns": learns} | found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
