"""Throughput of an engine that is kept full by an agent, and by a minimal client, side by side.

The engine has its own core and everything else the other cores, in both arms. Work is queued before the agent
starts. The figures are output tokens per second and empty batch slots, by the engine's own metrics, from the
first full batch to the start of the last request.
"""

import argparse
import contextlib
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks import setups
from benchmarks.overhead.arms import ARMS, DIRECT, EngineUnderTest, measure, on_cores
from benchmarks.overhead.meter import Filled
from support.emulated_engine import engine_command
from support.ports import free_port
from support.process import ServerProcess
from support.vllm_cpu import VllmOptions, running_vllm, tiny_model

EMULATED, VLLM = "emulated", "vllm"
WANTED: Final = {EMULATED: 0.97, VLLM: 0.95}
"""Required throughput by an agent, as a share of the direct one."""

_MODEL: Final = "filled"


def main(argv: Sequence[str]) -> int:
    """Measure, print a table and save it."""
    parser = argparse.ArgumentParser(prog='make bench ARGS="overhead"', description=__doc__)
    parser.add_argument("--engine", choices=(EMULATED, VLLM), default=EMULATED)
    parser.add_argument("--arm", choices=ARMS, action="append", help="arm besides direct; default: all")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--requests", type=int, help="requests of a run; default: 12 per batch slot")
    parser.add_argument("--places", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("build/overhead.json"))
    options = parser.parse_args(argv)
    arms = (DIRECT, *(options.arm or ARMS[1:]))
    engine_core, others = _cores()
    print(f"machine: {setups.machine()}; engine on core {engine_core}, all else on {others}", flush=True)
    found: dict[str, list[Filled]] = {arm: [] for arm in arms}
    with on_cores(others), _running(options.engine, options.places, engine_core) as engine:
        for run in range(options.runs):
            for arm in arms:
                one = measure(arm, engine, options.requests or 12 * options.places, run)
                found[arm].append(one)
                print(f"  run {run + 1} {arm:<9} {_shown(one)}", flush=True)
    result = _table(found, WANTED[options.engine])
    setups.save(options.out, {"machine": setups.machine(), "engine": options.engine, "arms": result})
    print(f"written to {options.out}")
    return 0 if all(row["good"] for row in result) else 1


def _table(found: dict[str, list[Filled]], wanted: float) -> list[dict[str, Any]]:
    """Return one row per arm, by the medians of its runs."""
    direct = statistics.median(one.tokens_per_s for one in found[DIRECT])
    direct_engine = statistics.median(one.tokens_per_engine_s for one in found[DIRECT])
    rows = []
    names = ("tokens/s", "share", "by engine time", "places empty", "readings with one")
    print(f"{'arm':<10}" + "".join(f"{name:>19}" for name in names))
    for arm, runs in found.items():
        tokens_per_s = statistics.median(one.tokens_per_s for one in runs)
        empty = statistics.median(one.empty_mean for one in runs)
        seen = statistics.median(one.empty_share for one in runs)
        share = tokens_per_s / direct
        engine_share = statistics.median(one.tokens_per_engine_s for one in runs) / direct_engine
        good = arm == DIRECT or share >= wanted
        note = "" if good else f"  wanted {wanted:.0%}"
        cells = (f"{tokens_per_s:.0f}", f"{share:.1%}", f"{engine_share:.1%}", f"{empty:.2f}", f"{seen:.1%}")
        print(f"{arm:<10}" + "".join(f"{cell:>19}" for cell in cells) + note)
        shares = {"share": share, "share_by_engine_processor_time": engine_share, "good": good}
        rows.append({"arm": arm, **shares, "runs": [asdict(one) for one in runs]})
    return rows


def _shown(one: Filled) -> str:
    return (
        f"{one.tokens_per_s:7.0f} tokens/s over {one.seconds:5.1f} s, "
        f"{one.tokens_per_engine_s:.0f} per second of the engine's processor time, "
        f"{one.empty_mean:.2f} places empty, one in {one.empty_share:.1%} of {one.samples} readings"
    )


def _cores() -> tuple[int, set[int]]:
    """Return a core for the engine, and those for the rest; the same one if there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], set(cores[1:] or cores)


@contextlib.contextmanager
def _running(kind: str, places: int, core: int) -> Iterator[EngineUnderTest]:
    """Run an engine on its own core."""
    with contextlib.ExitStack() as stack:
        if kind == VLLM:
            options = VllmOptions(served_model_name=_MODEL, max_num_seqs=places, kv_cache_bytes=256 * 2**20)
            with on_cores({core}):
                server = stack.enter_context(running_vllm(options))
            model = {"id": _MODEL, "engine": "vllm", "path": str(tiny_model()), "context_tokens": 2048}
            yield EngineUnderTest(
                url=server.base_url, group=server.process.pid, model=model, seqs_max=places, sample_s=0.25
            )
            return
        folder, port = stack.enter_context(tempfile.TemporaryDirectory(prefix="qlm-overhead-")), free_port()
        command = engine_command(port, _MODEL, seqs_max=places)
        engine = ServerProcess("engine", command, env=os.environ, folder=Path(folder))
        stack.callback(engine.kill)
        with on_cores({core}):
            engine.start()
        engine.wait_ready(lambda: "ready on" in engine.log_file.read_text(), timeout_s=30)
        model = {"id": _MODEL, "profile": "mistral-7b", "context_tokens": 4096}
        url = f"http://127.0.0.1:{port}"
        yield EngineUnderTest(url=url, group=engine.pid, model=model, seqs_max=places, sample_s=0.05)
