"""Ablation of LLM serving operations: the same requests with one operation switched off at a time.

Four models time-share two instances (`scenarios/four-models.yaml`). All arms see the same requests and seed;
planning time is charged, and attainment is over all submitted requests. `python -m benchmarks.ablation`
simulates; `benchmarks.ablation_real` runs arms on emulated engines. Needs QLM_TRACES.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import setups
from qlm.cli.scenario.workload import draw_scenario
from qlm.domain.operations import SwapTier
from qlm.simulator.policies import POLICIES, Policy
from qlm.simulator.report import summary
from qlm.simulator.scenario import Scenario
from qlm.simulator.simulation import simulate

SCENARIO: Final = Path(__file__).parent / "scenarios" / "four-models.yaml"

Change = Callable[[Scenario], Scenario]


def _tiers(*tiers: SwapTier) -> Change:
    return lambda scenario: replace(
        scenario, instances=tuple(replace(each, swap_tiers=tiers) for each in scenario.instances)
    )


def _pinned(scenario: Scenario) -> Scenario:
    """Restrict each instance to its first model."""
    pinned = tuple(replace(each, models=each.models[:1]) for each in scenario.instances)
    return replace(scenario, instances=pinned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Arm of the ablation.

    Attributes:
        off: Name of the operation that is switched off.
        policy: Differing fields of the policy.
        change: Change of the scenario.
    """

    off: str
    policy: Mapping[str, Any] = field(default_factory=dict)
    change: Change = lambda scenario: scenario

    def policy_of(self, base: Policy) -> Policy:
        """Return the policy of this arm."""
        return replace(base, **self.policy)


ARMS: Final = {
    "all": Arm(off="nothing"),
    "eviction": Arm(off="request eviction", policy={"evicts": False}),
    "kv-swap": Arm(off="GPU-CPU state swap", change=lambda scenario: replace(scenario, host_kv_bytes=0)),
    "warm": Arm(off="warm swaps (reload instead)", change=_tiers(SwapTier.RELOAD)),
    "reload": Arm(off="reloads (warm or cold)", change=_tiers(SwapTier.WARM)),
    "sleep": Arm(off="sleep (all swaps cold)", change=_tiers()),
    "warm-ahead": Arm(off="prefetch of weights", policy={"warms_ahead": False}),
    "balance": Arm(off="load balancing", policy={"balances": False}),
    "demotion": Arm(off="demotion of late requests", policy={"demotes": False}),
    "swap-hysteresis": Arm(off="swap hysteresis for deferrable work", policy={"swap_idle_s": 0.0}),
    "visits": Arm(off="visits", policy={"visits": False}),
    "placement": Arm(off="placement", policy={"places": False}),
    "model-swap": Arm(off="model swaps (first models only)", change=_pinned),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablated:
    """Result of one simulation of an arm."""

    arm: str
    seed: int
    figures: dict[str, Any]


def ablated(scenario: Path, arm: str, seed: int, load: float) -> Ablated:
    """Simulate an arm."""
    drawn, chosen = draw_scenario(scenario, seed, load=load), ARMS[arm]
    policy = chosen.policy_of(POLICIES["qlm"])
    result = simulate(chosen.change(drawn.scenario), policy, seed, stopwatch_s=time.perf_counter)
    return Ablated(arm=arm, seed=seed, figures=summary(result, drawn.streams))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the arms and print the table."""
    options = _options(arguments)
    found = []
    jobs = [(arm, seed) for arm in options.arms for seed in options.seeds]
    with ProcessPoolExecutor(options.jobs) as pool:
        arms, seeds = zip(*jobs, strict=True)
        for one in pool.map(ablated, repeat(options.scenario), arms, seeds, repeat(options.load)):
            found.append(one)
            print(f"  without {one.arm:12} seed {one.seed}: {one.figures['attainment']:.4f}", flush=True)
            setups.save(options.out, {"machine": setups.machine(), "found": [asdict(one) for one in found]})
    Console(width=150).print(table(found))
    return 0


def table(found: Sequence[Ablated]) -> Table:
    """Return one row per arm, means over seeds; the difference is to the full arm, paired by seed."""
    made = Table(
        "switched off", "attainment", "difference", "by class", "warm", "reload", "cold", "swap s", "thrash",
        "prefetched", "preempted", "swapped out", "moves", "requests/s",
    )  # fmt: skip
    full = {one.seed: one.figures["attainment"] for one in found if one.arm == "all"}
    for arm in dict.fromkeys(one.arm for one in found):
        ones = [one for one in found if one.arm == arm]
        differences = [one.figures["attainment"] - full[one.seed] for one in ones if one.seed in full]
        classes = ones[0].figures["attainment_by_class"]
        made.add_row(
            ARMS[arm].off,
            f"{_mean(one.figures['attainment'] for one in ones):.3f}",
            f"{_mean(differences):+.3f}" if arm != "all" and differences else "",
            " ".join(
                f"{name} {_mean(one.figures['attainment_by_class'][name] for one in ones):.2f}"
                for name in classes
            ),
            *(f"{_mean(one.figures[f'swaps_{tier}'] for one in ones):.1f}" for tier in SwapTier),
            f"{_mean(one.figures['swap_seconds'] for one in ones):.0f}",
            f"{_mean(one.figures['swaps_thrashed'] for one in ones):.1f}",
            f"{_mean(one.figures['operations']['warm'] for one in ones):.1f}",
            f"{_mean(one.figures['operations']['evict'] for one in ones):.0f}",
            f"{_mean(one.figures['operations']['swap_out'] for one in ones):.0f}",
            f"{_mean(one.figures['moves'] for one in ones):.0f}",
            f"{_mean(one.figures['throughput_rps'] for one in ones):.1f}",
        )
    return made


def _mean(values: Any) -> float:
    given = [value for value in values if value is not None]
    return sum(given) / len(given) if given else float("nan")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ablation", description=__doc__)
    parser.add_argument("--scenario", type=Path, default=SCENARIO)
    parser.add_argument("--arms", nargs="+", default=tuple(ARMS), choices=tuple(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("--load", type=float, default=1.0, help="factor on all arrival rates")
    parser.add_argument("--jobs", type=int, default=1, help="parallel simulations")
    parser.add_argument("--out", type=Path, default=Path("build/ablation.json"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
