"""The two compared engines, the profile of one for the other, and their provenance."""

import contextlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import setups
from benchmarks.fidelity_run import Cores, Engine, metered, say
from benchmarks.fidelity_workload import ANSWERS, PROMPTS
from qlm.cli.commands.profile.command import profile_command
from qlm.cli.commands.profile.running import profile_engine
from support.ports import free_port
from support.process import ServerProcess
from support.vllm_cpu import ROOT, VllmOptions, running_vllm, tiny_model

MODEL = "tiny"
ACCELERATOR = "CPU"
SEQS_MAX = 16
BATCHED_TOKENS_MAX = 2048
CONTEXT_TOKENS = PROMPTS.tokens_max + ANSWERS.tokens_max
ASYNC_SCHEDULING = False
"""vLLM on the CPU never schedules asynchronously, whatever its flag says."""
KV_BYTES = 256 * 2**20
KV_BYTES_PER_TOKEN = 4096
"""4 layers x 2 KV heads x 64 dimensions x key and value x 4 bytes of float32."""

OPTIONS = VllmOptions(
    served_model_name=MODEL,
    dtype="float32",
    max_model_len=CONTEXT_TOKENS,
    max_num_seqs=SEQS_MAX,
    kv_cache_bytes=KV_BYTES,
    extra_args=("--max-num-batched-tokens", str(BATCHED_TOKENS_MAX)),
)
"""float32: in bfloat16 the first short prompt ends the engine on CPUs with AMX. 65 536 tokens of KV cache: no
request is ever preempted. One thread computes (OMP_NUM_THREADS=1, not bound), so that the scheduler, the API
server and the client have the other core."""

QLM = str(Path(sys.executable).with_name("qlm"))


@contextlib.contextmanager
def real_engine() -> Iterator[Engine]:
    """Run vLLM on the CPU."""
    say("starting vLLM")
    with running_vllm(OPTIONS) as server:
        yield Engine(server.base_url, MODEL, server.process.pid)


@contextlib.contextmanager
def emulated_engine(profile: Path) -> Iterator[Engine]:
    """Run the emulation with a profile."""
    say("starting the emulation")
    with tempfile.TemporaryDirectory(prefix="qlm-fidelity-") as folder:
        port = free_port()
        argv = [
            QLM, "emulate", "--profile", str(profile.resolve()), "--served-model-name", MODEL,
            "--port", str(port),
        ]  # fmt: skip
        server = ServerProcess("emulated", argv, env=dict(os.environ), folder=Path(folder))
        server.start()
        try:
            server.wait_ready(lambda: "ready on" in server.log_file.read_text(), timeout_s=30)
            yield Engine(f"http://127.0.0.1:{port}", MODEL, server.pid)
        finally:
            server.kill()


def measure_profile(engine: Engine, file: Path, *, quick: bool) -> Cores:
    """Measure an engine with `qlm profile`."""
    argv = [QLM, "profile", *_profile_arguments(engine, file, quick=quick)]
    _done, cores = metered(engine, "profile", lambda: subprocess.run(argv, check=True, stdout=sys.stderr))
    return cores


async def profile_within(
    engine: Engine, file: Path, *, quick: bool, repeats: int, on_pass: Callable[[], Awaitable[None]]
) -> None:
    """Measure an engine as `qlm profile` does, in this process, and call `on_pass` after each repetition."""
    arguments = [*_profile_arguments(engine, file, quick=quick), "--repeats", str(repeats)]
    options = profile_command.make_context("profile", arguments).params
    with contextlib.redirect_stdout(sys.stderr):
        await profile_engine(options, Console(stderr=True, force_terminal=False), on_pass)


def _profile_arguments(engine: Engine, file: Path, *, quick: bool) -> list[str]:
    """Return the command line of `qlm profile`.

    What no request shows (loading and waking) plays no part here and is set to a second.
    """
    weights = (tiny_model() / "model.safetensors").stat().st_size * 2  # stored in bfloat16
    memory = weights + KV_BYTES
    facts = {
        "--weights-bytes": weights, "--kv-bytes-per-token": KV_BYTES_PER_TOKEN,
        "--accelerator-memory-bytes": memory, "--swap-warm-s": 1, "--swap-reload-s": 1, "--swap-cold-s": 1,
        "--unload-s": 1, "--host-bandwidth-bytes-per-s": 1e10,
    }  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    return [
        engine.url, "--accelerator", ACCELERATOR, "--max-num-seqs", str(SEQS_MAX),
        "--max-num-batched-tokens", str(BATCHED_TOKENS_MAX),
        "--async-scheduling" if ASYNC_SCHEDULING else "--no-async-scheduling", "--out", str(file), "--force",
        *(str(word) for fact in facts.items() for word in fact), *(["--quick"] if quick else []),
    ]  # fmt: skip


def provenance() -> dict[str, Any]:
    """Return versions, flags and the machine."""
    versions = {name: importlib.metadata.version(name) for name in ("qlm-serving", "aiohttp", "uvloop")}
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "machine": setups.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "versions": versions | _vllm_versions(),
        "engine": {
            "dtype": OPTIONS.dtype,
            "max_model_len": OPTIONS.max_model_len,
            "max_num_seqs": OPTIONS.max_num_seqs,
            "max_num_batched_tokens": BATCHED_TOKENS_MAX,
            "async_scheduling": ASYNC_SCHEDULING,
            "kv_cache_bytes": OPTIONS.kv_cache_bytes,
            "omp_threads": 1,
        },
    }


def _vllm_versions() -> dict[str, str]:
    names = "vllm-cpu", "torch", "transformers"
    code = f"import importlib.metadata as m; print(*(m.version(n) for n in {names!r}))"
    shown = subprocess.run(
        [ROOT / ".venv-vllm/bin/python", "-c", code], capture_output=True, text=True, check=True
    )
    return dict(zip(names, shown.stdout.split(), strict=True))
