"""Processor time of the controller's loop under a long queue: `make bench ARGS="loop"`.

A hundred instances with full batches, and 400 000 waiting requests of 12 models in interactive, deadline and
batch classes. The controller's own loop runs on a store in memory: each turn reads the view, learns,
regroups, builds and solves the planning problem, and applies and publishes what has changed. Between turns
the clock is moved by what the loop waits, requests arrive and end, and instances report. The figure is the
processor time of the turns over the time that passed. The store's share of it is that of a server in
production.
"""

import argparse
import asyncio
import cProfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.controller_traffic import OBJECTIVES, MovedClock, Traffic, fleet_of, full_instances
from benchmarks.planner_live import BASES, PROFILES
from benchmarks.planner_timing import peak_memory_gb, quantiles
from benchmarks.setups import machine, save
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.cli.runtime.wiring import group_ids, new_controller_id
from qlm.controller.core.decide import ControllerSettings
from qlm.controller.core.pace import pause_s
from qlm.controller.shell.loop import ControllerLoop
from qlm.domain.group import request_class
from qlm.domain.ids import ModelId
from qlm.planner.policy.replanning import Replanner
from qlm.planner.warm_up import warm_up_fast
from qlm.store.embedded.memory import MemoryStore


@dataclass(frozen=True, slots=True)
class LoopShare:
    """Processor time of turns over the time that passed.

    Attributes:
        turns_s: Processor time of each turn.
        loop_s: Processor time of all, with that of a planner that goes on between turns.
        passed_s: Time that passed.
        groups: Groups of the last problem.
        kinds: Kinds of the last problem.
    """

    turns_s: Sequence[float]
    loop_s: float
    passed_s: float
    groups: int
    kinds: int

    @property
    def share(self) -> float:
        """Share of a core."""
        return self.loop_s / self.passed_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=loop", description=__doc__)
    parser.add_argument("--waiting", type=int, default=400_000)
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--group", type=int, default=250, help="largest group: 250 makes 1 600 groups")
    parser.add_argument("--seconds", type=float, default=20.0, help="time that is to pass")
    parser.add_argument("--profile", type=Path, help="write where the main thread's time goes, for pstats")
    parser.add_argument("--out", type=Path, default=Path("build/bench-loop.json"))
    options = parser.parse_args(arguments)
    print(f"machine: {machine()}\n", flush=True)
    warm_up_fast()
    profiler = cProfile.Profile(time.process_time) if options.profile else None
    share = asyncio.run(
        measure(options.waiting, options.instances, options.group, options.seconds, profiler=profiler)
    )
    median_s, most_s = quantiles(share.turns_s, (0.5, 1.0))
    print(f"{options.waiting} waiting in {share.groups} groups, ", end="")
    print(f"{options.instances} instances of {share.kinds} kinds")
    print(f"{len(share.turns_s)} turns in {share.passed_s:.1f} s: median {1000 * median_s:.1f} ms, ", end="")
    print(f"longest {1000 * most_s:.1f} ms of the processor; {share.share:.1%} of a core")
    if profiler is not None:
        profiler.dump_stats(options.profile)
    result: dict[str, Any] = {
        "machine": machine(),
        "turns_s": list(share.turns_s),
        "passed_s": share.passed_s,
        "share": share.share,
        "peak_memory_gb": peak_memory_gb(),
    }
    save(options.out, result)
    return 0


async def measure(
    waiting: int, instances: int, group: int, seconds: float, *, profiler: cProfile.Profile | None = None
) -> LoopShare:
    """Run the loop for a given time, after a first turn that groups what waits."""
    clock, settings = MovedClock(), ControllerSettings(group_requests_max=group, lead_ttl_s=1e6)
    names = [ModelId(f"m{at:02d}") for at in range(12)]
    profiles = {
        (name, p.accelerator): p
        for at, name in enumerate(names)
        for p in PROFILES
        if p.model == BASES[at % len(BASES)] and p.gpus == 1
    }
    store, rng = MemoryStore(clock), np.random.default_rng(1)
    fleet = list(full_instances(instances, names, profiles))
    weights = rng.dirichlet([4.0] * len(names))
    classes = [
        (request_class(name, slo, 0), slo, float(weight) * share, age_s)
        for name, weight in zip(names, weights, strict=True)
        for slo, share, age_s in OBJECTIVES
    ]
    traffic = Traffic(store, clock, fleet, classes, rng)
    for each in fleet:
        await store.heartbeat(each.status, 10.0)
    await traffic.fill(waiting)
    with tempfile.TemporaryDirectory(prefix="qlm-bench-") as folder:
        file = await SqliteFile.open(Path(folder) / "queue.db")
        queues = await SqliteQueues.open(file)
        loop = ControllerLoop(
            name=new_controller_id(),
            store=store,
            broker=queues.broker(),
            clock=clock,
            fleet=fleet_of(names, profiles),
            settings=settings,
            planner=Replanner(seed=1),
            new_group_id=group_ids(),
        )
        try:
            return await _measure(loop, traffic, settings, seconds, profiler)
        finally:
            await queues.close()
            await file.close()


async def _measure(
    loop: ControllerLoop,
    traffic: Traffic,
    settings: ControllerSettings,
    seconds: float,
    profiler: cProfile.Profile | None,
) -> LoopShare:
    decision = await loop.run_once()
    await traffic.pass_time(1.0)
    begun_ns, begun_s, traffic_s, turns_s = traffic.clock.now, time.process_time(), 0.0, list[float]()
    while (traffic.clock.now - begun_ns) / 1e9 < seconds:
        if profiler is not None:
            profiler.enable()
        began_s = time.process_time()
        decision = await loop.run_once()
        turns_s.append(time.process_time() - began_s)
        if profiler is not None:
            profiler.disable()
        thread_s = time.thread_time()
        await traffic.pass_time(turns_s[-1] + pause_s(loop.decided_s, settings.min_interval_s))
        traffic_s += time.thread_time() - thread_s
    loop_s = time.process_time() - begun_s - traffic_s
    passed_s = (traffic.clock.now - begun_ns) / 1e9
    return LoopShare(turns_s, loop_s, passed_s, len(decision.problem.groups), len(decision.problem.kinds))


if __name__ == "__main__":
    raise SystemExit(main())
