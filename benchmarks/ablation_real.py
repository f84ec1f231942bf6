"""Ablation on emulated engines: real servers, agents and processes, in real time.

The requests of `scenarios/four-models.yaml` are sent to `qlm serve`, whose agents start emulated engines on
two A100, open loop and streamed. Times are scaled, arrivals and objectives included: an emulated second takes
`--time-scale` real ones. Each arm switches one operation off. Needs QLM_TRACES.
"""

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
from rich.console import Console
from rich.table import Table

from benchmarks import setups
from benchmarks.ablation import SCENARIO
from benchmarks.load import client
from qlm.cli.scenario.workload import draw_scenario
from qlm.simulator.scenario import Scenario, SloClass, Workload
from qlm.simulator.seeds import Seeds
from support.ports import free_port
from support.qlm_process import QlmProcess

READY_S: Final = 600.0
INSTANCES: Final = {
    "a100-0": ("mistral-7b", "llama-3-8b", "vicuna-13b", "tail-13b"),
    "a100-1": ("llama-3-8b", "mistral-7b", "vicuna-13b", "tail-13b"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RealArm:
    """Changes of the configuration in one arm."""

    off: str
    instance: Mapping[str, Any] = field(default_factory=dict)
    operations: Mapping[str, bool] = field(default_factory=dict)


ARMS: Final = {
    "all": RealArm(off="nothing"),
    "eviction": RealArm(off="request eviction", operations={"evict": False}),
    "kv-swap": RealArm(off="GPU-CPU state swap", instance={"host_kv_gib": 0}),
    "sleep": RealArm(off="sleep (all swaps cold)", instance={"swap_tiers": []}),
    "warm": RealArm(off="warm swaps (reload instead)", instance={"swap_tiers": ["reload"]}),
    "warm-ahead": RealArm(off="prefetch of weights", operations={"warm_ahead": False}),
    "balance": RealArm(off="load balancing", operations={"balance": False}),
    "demotion": RealArm(off="demotion of late requests", operations={"demote": False}),
    "visits": RealArm(off="visits", operations={"visit": False}),
    "placement": RealArm(off="placement", operations={"place": False}),
}


@dataclass(slots=True)
class Outcome:
    """Outcome of one request: real seconds after its arrival; None if it never happened.

    Attributes:
        first_s: First tokens.
        ended_s: End of the answer.
        refused: Error instead of an answer.
    """

    first_s: float | None = None
    ended_s: float | None = None
    refused: str = ""


def config_of(arm: RealArm, time_scale: float) -> dict[str, Any]:
    """Build the configuration of an arm."""
    return {
        "models": [
            {"id": name, "context_tokens": 4096, "profile": "vicuna-13b" if name == "tail-13b" else name}
            for name in INSTANCES["a100-0"]
        ],
        "instances": [
            {
                "id": id, "accelerator": "A100", "models": list(models), "host_memory_gib": 64,
                "host_kv_gib": 16, **arm.instance,
            }
            for id, models in INSTANCES.items()
        ],
        "emulate": {"time_scale": time_scale, "cold_start": True},
        "operations": dict(arm.operations),
    }  # fmt: skip


async def replay(url: str, scenario: Scenario, workload: Workload, time_scale: float) -> list[Outcome]:
    """Send all requests at their arrival times, and wait for all answers."""
    outcomes = [Outcome() for _ in range(len(workload))]
    began_s = time.perf_counter()
    async with client(timeout_s=None) as session, asyncio.TaskGroup() as group:
        for row in range(len(workload)):
            due_s = int(workload.arrival_ns[row]) / 1e9 * time_scale
            await asyncio.sleep(max(0.0, due_s - (time.perf_counter() - began_s)))
            body = _body(scenario, workload, row, time_scale)
            group.create_task(_one(session, f"{url}/v1/completions", body, began_s + due_s, outcomes[row]))
    return outcomes


def _body(scenario: Scenario, workload: Workload, row: int, time_scale: float) -> bytes:
    slo = scenario.slo_classes[int(workload.slo_class[row])].slo
    target = {} if slo.target_ms is None else {_kind(scenario, workload, row): slo.target_ms * time_scale}
    # The first tokens differ, so that no prompt has a prefix in a cache.
    prompt = [1 + (row >> shift) % 250 for shift in (0, 8, 16)] + [7] * int(workload.prompt_tokens[row])
    body = {
        "model": scenario.models[int(workload.model[row])].id,
        "prompt": prompt[: max(4, int(workload.prompt_tokens[row]))],
        "max_tokens": int(workload.output_tokens[row]),
        "ignore_eos": True,
        "stream": True,
    }
    return orjson.dumps({**body, "slo": target} if target else {**body, "service_tier": "flex"})


def _kind(scenario: Scenario, workload: Workload, row: int) -> str:
    name = scenario.slo_classes[int(workload.slo_class[row])].name
    return "deadline_ms" if name == "deadline" else "ttft_ms"


async def _one(session: aiohttp.ClientSession, url: str, body: bytes, due_s: float, outcome: Outcome) -> None:
    headers = {"Content-Type": "application/json"}
    try:
        async with session.post(url, data=body, headers=headers) as answer:
            outcome.refused = "" if answer.status == 200 else f"status {answer.status}"
            async for line in answer.content:
                if line.startswith(b"data: {") and outcome.first_s is None:
                    outcome.first_s = time.perf_counter() - due_s
                if line.startswith(b"data: [DONE]"):
                    outcome.ended_s = time.perf_counter() - due_s
    except (aiohttp.ClientError, TimeoutError) as error:
        outcome.refused = type(error).__name__


def met(slo_class: SloClass, outcome: Outcome, time_scale: float) -> bool:
    """Return whether the client's answer met its objective."""
    if outcome.ended_s is None:
        return False
    target_ms = slo_class.slo.target_ms
    came_s = outcome.ended_s if slo_class.name == "deadline" else outcome.first_s
    return target_ms is None or (came_s is not None and came_s <= target_ms * time_scale / 1000)


async def measured(arm: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one arm."""
    drawn = draw_scenario(options.scenario, options.seed, load=options.load)
    workload = drawn.scenario.make_workload(Seeds(options.seed))
    with tempfile.TemporaryDirectory(prefix="qlm-bench-") as temporary:
        folder = Path(temporary)
        config = config_of(ARMS[arm], options.time_scale)
        config |= {"data_dir": str(folder / "data"), "http": {"port": free_port()}}
        process = QlmProcess("serve", "serve", config=config, folder=folder)
        process.start()
        try:
            process.wait_ready(instances=len(INSTANCES), timeout_s=READY_S)
            outcomes = await replay(process.url, drawn.scenario, workload, options.time_scale)
            async with client() as session, session.get(f"{process.admin_url}/admin/v1/instances") as answer:
                instances = (await answer.json())["instances"]
        finally:
            process.terminate(timeout_s=60)
    classes = drawn.scenario.slo_classes
    good = [
        met(classes[int(workload.slo_class[row])], outcome, options.time_scale)
        for row, outcome in enumerate(outcomes)
    ]
    return {
        "arm": arm,
        "attainment": sum(good) / len(good),
        "requests": len(good),
        "answered": sum(outcome.ended_s is not None for outcome in outcomes),
        "refused": Counter(outcome.refused for outcome in outcomes if outcome.ended_s is None),
        **_operations(instances),
    }


def _operations(instances: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for instance in instances:
        for each in instance["operations"]["counts"]:
            counts[each["operation"]] = counts.get(each["operation"], 0) + each["count"]
    return {
        "counts": counts,
        "thrashed": sum(each["operations"]["swaps_thrashed"] for each in instances),
        "lost_s": sum(lost["seconds"] for each in instances for lost in each["operations"]["swap_lost"]),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the arms and print the table."""
    options = _options(arguments)
    found = []
    for arm in options.arms:
        found.append(asyncio.run(measured(arm, options)))
        print(f"  {found[-1]}", flush=True)
        saved = {"machine": setups.machine(), "options": {k: str(v) for k, v in vars(options).items()}}
        setups.save(options.out, saved | {"found": found, "arms": {k: asdict(v) for k, v in ARMS.items()}})
    Console(width=140).print(_table(found, options.time_scale))
    return 0


def _table(found: Sequence[Mapping[str, Any]], time_scale: float) -> Table:
    swaps = ("model_swap_warm", "model_swap_reload", "model_swap_cold")
    table = Table(
        "switched off", "requests", "answered", "attainment",
        *(name.removeprefix("model_swap_") for name in swaps), "swap s", "thrash", "ahead", "evicted",
        "swapped out",
    )  # fmt: skip
    for one in found:
        counts = one["counts"]
        table.add_row(
            ARMS[one["arm"]].off,
            str(one["requests"]),
            str(one["answered"]),
            f"{one['attainment']:.3f}",
            *(str(counts.get(name, 0)) for name in swaps),
            f"{one['lost_s'] / time_scale:.0f}",
            str(one["thrashed"]),
            str(counts.get("warm", 0)),
            str(counts.get("evict", 0)),
            str(counts.get("swap_out", 0)),
        )
    return table


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ablation_real", description=__doc__)
    parser.add_argument("--scenario", type=Path, default=SCENARIO)
    parser.add_argument("--arms", nargs="+", default=tuple(ARMS), choices=tuple(ARMS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", type=float, default=1.0, help="factor on all arrival rates")
    parser.add_argument("--time-scale", type=float, default=1.0, help="real seconds per emulated second")
    parser.add_argument("--out", type=Path, default=Path("build/ablation-real.json"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
