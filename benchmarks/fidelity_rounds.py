"""One round of the fidelity benchmark: real runs, the profile, and the emulated run of the same requests."""

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import uvloop

from benchmarks.fidelity_compare import steady_tokens_per_s
from benchmarks.fidelity_report import SATURATED, Replay, Round
from benchmarks.fidelity_run import Cores, Engine, Meter, Run, run, run_within, say
from benchmarks.fidelity_servers import SEQS_MAX, emulated_engine, measure_profile, profile_within
from benchmarks.fidelity_workload import Planned, plan

LOADS = {"60 % load": 0.6, SATURATED: 3.0}
"""Arrival rates as multiples of the engine's completions with a full batch. The wait behind a backlog grows
by 1/c - 1/r per request, for capacity c and rate r: with r just above c, one per cent of c would be many of
it."""

PASSES = 4
"""Measurements per point of the profile; between two of them the requests are sent."""
PACE_REQUESTS = 75
"""Requests by which the saturation throughput is measured, at least: a few batches of 16."""

Runs = Mapping[str, Run]
"""Runs by load."""


def sliced_round(engine: Engine, options: argparse.Namespace, seed: int) -> Round:
    """Run a round in which the profile and the real runs take turns."""
    pace_rps, plans = _plans(engine, options, seed)
    slices: list[Runs] = []
    profiling: list[Cores] = []
    profile: Path = options.profile or options.out.with_suffix(f".profile-{seed}.yaml")

    async def play() -> None:
        meter = Meter(engine)

        async def on_pass() -> None:
            profiling.append(meter.lap(f"profile {len(profiling) + 1} of {PASSES}"))
            if len(slices) < PASSES - 1:
                slices.append(await _slice(engine, plans, len(slices) + 1, seed))
            meter.restart()

        await profile_within(engine, profile, quick=options.quick, repeats=PASSES, on_pass=on_pass)

    async def play_without_profile() -> None:
        slices.extend([await _slice(engine, plans, number, seed) for number in range(1, PASSES)])

    uvloop.run(play_without_profile() if options.profile else play())
    return _finished(profile, plans, slices, seed, pace_rps, profiling)


async def _slice(engine: Engine, plans: Mapping[str, Sequence[Planned]], number: int, seed: int) -> Runs:
    """Run all loads, every other time in reverse order."""
    loads: Iterable[str] = plans if number % 2 else reversed(list(plans))
    return {
        load: await run_within(engine, plans[load], f"vLLM {number}, {load}, seed {seed}") for load in loads
    }


def whole_round(engine: Engine, options: argparse.Namespace, seed: int) -> Round:
    """Run a round of the older procedure: the whole profile between two real runs."""
    pace_rps, plans = _plans(engine, options, seed)
    first = _runs(engine, plans, "vLLM", seed)
    profile: Path = options.profile or options.out.with_suffix(f".profile-{seed}.yaml")
    profiling = [] if options.profile else [measure_profile(engine, profile, quick=options.quick)]
    again = _runs(engine, plans, "vLLM again", seed)
    return _finished(profile, plans, [first, again], seed, pace_rps, profiling)


def _plans(engine: Engine, options: argparse.Namespace, seed: int) -> tuple[float, dict[str, list[Planned]]]:
    """Measure the engine's completions per second with a full batch, and plan the loads by it."""
    planned = plan(max(PACE_REQUESTS, options.requests // 2), float("inf"), seed)
    pace = steady_tokens_per_s(run(engine, planned, f"vLLM, all at once, seed {seed}").answers, SEQS_MAX)
    assert pace is not None, "more requests than batch slots at once fill the batch"
    rps = pace / statistics.fmean(one.output_tokens for one in planned)
    say(f"saturated at {pace:.0f} tokens/s, {rps:.1f} requests/s")
    return rps, {load: plan(options.requests, share * rps, seed) for load, share in LOADS.items()}


def _finished(
    profile: Path,
    plans: Mapping[str, Sequence[Planned]],
    slices: Sequence[Runs],
    seed: int,
    pace_rps: float,
    profiling: Sequence[Cores],
) -> Round:
    """Send the requests to the emulation, and return the round."""
    with emulated_engine(profile) as emulation:
        emulated = _runs(emulation, plans, "emulated", seed)
    replays = tuple(
        Replay(load, tuple(plans[load]), (*(one[load] for one in slices), emulated[load])) for load in LOADS
    )
    return Round(seed, profile.read_text("utf-8"), tuple(profiling), pace_rps, replays)


def _runs(engine: Engine, plans: Mapping[str, Sequence[Planned]], name: str, seed: int) -> dict[str, Run]:
    return {load: run(engine, plans[load], f"{name}, {load}, seed {seed}") for load in plans}
