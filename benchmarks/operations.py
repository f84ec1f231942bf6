"""Each LLM serving operation, once, on running engines, with its evidence in one table.

`qlm serve` runs in its own process, with agents that start their engines: emulated ones (an A10 with two
models, at `--time-scale`), and real vLLM on the CPU where `.venv-vllm` is installed (a tiny random model,
twice). Answers of preempted requests, and of requests whose model was swapped, are compared to those of the
same requests alone. `python -m benchmarks.operations`; `--engines emulated` skips vLLM.
"""

import argparse
import asyncio
import json
import platform
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks import setups
from benchmarks.operations_offload import offload_refusal
from support import vllm_cpu
from support.flaky import until
from support.ports import free_port
from support.qlm_process import QlmProcess

PATIENCE_S: Final = 900.0
LONG_TOKENS: Final = 1200
"""Long enough for an urgent request to arrive and preempt it, on a busy machine, too."""

MANY_TOKENS: Final = 300
SHORT_TOKENS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Observed operation on one kind of engine.

    Attributes:
        engine: `emulated` or `vLLM`.
        operation: Name in the agents' statistics.
        count: Number of occurrences.
        mean_s: Mean duration, in seconds of the engine.
        evidence: Observed effect.
    """

    engine: str
    operation: str
    count: int
    mean_s: float
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Engines of one kind.

    Attributes:
        name: Name in the table.
        config: Configuration of `qlm serve` without instances.
        models: Two models.
        accelerator: Accelerator of its instances.
        seqs_max: Batch slots.
        time_scale: Real seconds per second of the engine.
    """

    name: str
    config: Mapping[str, Any]
    models: tuple[str, str]
    accelerator: str
    seqs_max: int
    time_scale: float


class Client:
    """Client of a running QLM."""

    def __init__(self, http: httpx.AsyncClient, admin_url: str) -> None:
        self._http = http
        self._admin_url = admin_url

    async def ask(self, model: str, prompt: str, tokens: int, **more: Any) -> str:
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        answer = (await self._http.post("/v1/completions", json={**body, **more})).raise_for_status().json()
        text: str = answer["choices"][0]["text"]
        return text

    async def counted(self) -> dict[str, tuple[int, float]]:
        """Return count and total seconds of each operation so far, over all instances and models."""
        found: dict[str, tuple[int, float]] = {}
        for instance in await self.instances():
            for each in instance["operations"]["counts"]:
                count, seconds = found.get(each["operation"], (0, 0.0))
                found[each["operation"]] = (count + each["count"], seconds + each["seconds"])
        return found

    async def instances(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = (await self._http.get(f"{self._admin_url}/admin/v1/instances")).json()[
            "instances"
        ]
        return listed

    async def until_running(self, requests: int) -> None:
        await _until(lambda: self._runs(requests))

    async def until_counted(self, operation: str) -> None:
        """Wait until a heartbeat has reported an operation."""
        await _until(lambda: self._has(operation))

    async def _runs(self, requests: int) -> bool:
        running = [int(each["running"]) for each in await self.instances()]
        return sum(running) >= requests

    async def _has(self, operation: str) -> bool:
        return operation in await self.counted()


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    await until(condition, PATIENCE_S)


@asynccontextmanager
async def running(setup: Setup, *, instances: int = 1, **of_instance: Any) -> AsyncIterator[Client]:
    """Run QLM with equal instances for both models; `of_instance` overrides their configuration."""
    each = {"accelerator": setup.accelerator, "models": list(setup.models), "seqs_max": setup.seqs_max}
    config = dict(setup.config) | {
        "instances": [{"id": f"i{n}", **each, **of_instance} for n in range(instances)],
        "default_slo": {"deadline_ms": 3_600_000},
    }
    with tempfile.TemporaryDirectory(prefix="qlm-bench-") as temporary:
        folder = Path(temporary)
        config |= {"data_dir": str(folder / "data"), "http": {"port": free_port()}}
        process = QlmProcess("serve", "serve", config=config, folder=folder)
        process.start()
        try:
            process.wait_ready(instances=instances, timeout_s=PATIENCE_S)
            async with httpx.AsyncClient(base_url=process.url, timeout=PATIENCE_S) as http:
                yield Client(http, process.admin_url)
        finally:
            process.terminate(timeout_s=60)


async def preempted(client: Client, setup: Setup, out: str, back: str) -> bool:
    """Preempt long requests by an urgent one; return whether their answers are those given alone."""
    model, tier = setup.models[0], "flex"
    prompts = [f"{n} is a long prompt" for n in range(setup.seqs_max)]
    alone = [await client.ask(model, prompt, LONG_TOKENS, service_tier=tier) for prompt in prompts]
    together = [
        asyncio.create_task(client.ask(model, prompt, LONG_TOKENS, service_tier=tier)) for prompt in prompts
    ]
    await client.until_running(setup.seqs_max)
    await client.ask(model, "quick", SHORT_TOKENS, slo={"ttft_ms": 1})
    same = list(await asyncio.gather(*together)) == alone
    await client.until_counted(out)
    await client.until_counted(back)
    return same


async def swapped(client: Client, setup: Setup, operation: str) -> bool:
    """Send requests to one model, the other and the first again; return whether its answer is the same."""
    first, second = setup.models
    before = await client.ask(first, "once upon a time", SHORT_TOKENS)
    await client.ask(second, "there was", SHORT_TOKENS)
    after = await client.ask(first, "once upon a time", SHORT_TOKENS)
    await client.until_counted(operation)
    return before == after


async def demonstrate(setup: Setup) -> list[Observed]:
    """Cause every operation on one kind of engine."""
    found: list[Observed] = []

    async def note(client: Client, operation: str, evidence: str) -> None:
        count, seconds = (await client.counted())[operation]
        found.append(
            Observed(
                engine=setup.name, operation=operation, count=count,
                mean_s=seconds / count / setup.time_scale, evidence=evidence,
            )
        )  # fmt: skip
        print(f"  {found[-1]}", flush=True)

    async with running(setup) as client:
        same = await preempted(client, setup, "evict", "resume")
        await note(client, "pull", "every request above was pulled")
        await note(client, "evict", f"answers as given alone: {_yes(same)}")
        await note(client, "resume", "the text so far is submitted again; a prefix hit where blocks are left")
        same = await swapped(client, setup, "model_swap_warm")
        await note(client, "model_swap_warm", f"the answer after waking is the same: {_yes(same)}")
        await note(client, "model_swap_cold", "a process started")
    async with running(setup, swap_tiers=["reload"]) as client:
        same = await swapped(client, setup, "model_swap_reload")
        await note(client, "model_swap_reload", f"the answer after reloading is the same: {_yes(same)}")
    async with running(setup, instances=2) as client:
        asked = [client.ask(setup.models[0], f"{n} of many", MANY_TOKENS) for n in range(8 * setup.seqs_max)]
        await asyncio.gather(*asked)
        await client.until_counted("pull")
        ended = [each["operations"]["ended"] for each in await client.instances()]
        await note(client, "pull", f"load balance: {' and '.join(map(str, ended))} answers of two instances")
    return found


async def demonstrate_on_emulated(setup: Setup) -> list[Observed]:
    """Cause the operations that need an engine with separate storage and host memory: the emulated one."""
    found = []
    async with running(setup, host_kv_gib=8.0) as client:
        same = await preempted(client, setup, "swap_out", "swap_in")
        for operation in ("swap_out", "swap_in"):
            count, seconds = (await client.counted())[operation]
            mean_s = seconds / count / setup.time_scale
            evidence = f"answers as given alone: {_yes(same)}"
            found.append(
                Observed(
                    engine=setup.name, operation=operation, count=count, mean_s=mean_s, evidence=evidence
                )
            )
    async with running(setup, swap_tiers=[]) as client:
        first, second = setup.models
        long = [client.ask(first, f"{n} tells", 2 * LONG_TOKENS) for n in range(2 * setup.seqs_max)]
        waiting = [asyncio.create_task(each) for each in long]
        await client.until_running(setup.seqs_max)
        later = asyncio.create_task(client.ask(second, "later", SHORT_TOKENS, service_tier="flex"))
        await client.until_counted("warm")
        await asyncio.gather(*waiting, later)
        count, seconds = (await client.counted())["warm"]
        evidence = "weights files of the model whose turn came later were read while the first one served"
        mean_s = seconds / count / setup.time_scale
        found.append(
            Observed(engine=setup.name, operation="warm", count=count, mean_s=mean_s, evidence=evidence)
        )
    for one in found:
        print(f"  {one}", flush=True)
    return found


def emulated(time_scale: float) -> Setup:
    """Return an A10 that serves two models in turn."""
    models = ("mistral-7b", "llama-3-8b")
    return Setup(
        name="emulated",
        config={
            "models": [{"id": model, "context_tokens": 4096} for model in models],
            "emulate": {"time_scale": time_scale, "cold_start": True},
        },
        models=models,
        accelerator="A10",
        seqs_max=2,
        time_scale=time_scale,
    )


def vllm() -> Setup:
    """Return the tiny model, twice, on the CPU build of vLLM."""
    models = {name: vllm_cpu.tiny_model(seed) for seed, name in enumerate(("tiny-0", "tiny-1"))}
    return Setup(
        name="vLLM CPU",
        config={
            "models": [
                {"id": name, "engine": "vllm", "path": str(folder), "context_tokens": 2048}
                for name, folder in models.items()
            ],
            "vllm": {
                "python": str(vllm_cpu.PYTHON), "cpu": True, "dtype": "float32", "block_tokens": 32,
                "kv_cache_bytes": 64 * 2**20, "pythonpath": str(vllm_cpu.SCRIPTS),
            },
        },
        models=("tiny-0", "tiny-1"),
        accelerator="CPU",
        seqs_max=2,
        time_scale=1.0,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all operations and print the table."""
    options = _options(arguments)
    found: list[Observed] = []
    notes: dict[str, str] = {}
    if "emulated" in options.engines:
        setup = emulated(options.time_scale)
        found += asyncio.run(demonstrate(setup)) + asyncio.run(demonstrate_on_emulated(setup))
    if "vllm" in options.engines:
        why = vllm_cpu.missing()
        if why is None:
            notes["offloading connector on vLLM CPU"] = offload_refusal()
            found += asyncio.run(demonstrate(vllm()))
        else:
            notes["vLLM CPU"] = why
    saved = {"machine": setups.machine(), "python": platform.python_version(), "notes": notes}
    setups.save(options.out, saved | {"found": [asdict(one) for one in found]})
    Console(width=150).print(_table(found))
    print(json.dumps(notes, indent=2))
    return 0


def _table(found: Sequence[Observed]) -> Table:
    table = Table("operation", "engine", "times", "mean, s", "seen")
    for one in sorted(found, key=lambda each: (each.operation, each.engine)):
        table.add_row(one.operation, one.engine, str(one.count), f"{one.mean_s:.3f}", one.evidence)
    return table


def _yes(same: bool) -> str:
    return "yes" if same else "NO"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="operations", description=__doc__)
    parser.add_argument("--engines", nargs="+", default=("emulated", "vllm"), choices=("emulated", "vllm"))
    parser.add_argument("--time-scale", type=float, default=0.25, help="real seconds per emulated second")
    parser.add_argument("--out", type=Path, default=Path("build/operations.json"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
