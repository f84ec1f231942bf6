"""A real vLLM for tests, on the CPU or, with QLM_TEST_GPU, on a GPU; its tiny random model is made for it."""

import contextlib
import fcntl
import http.client
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from support.ports import free_port
from support.process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
GPU = bool(os.environ.get("QLM_TEST_GPU"))
"""Run vLLM on this machine's GPU instead."""

VENV = ROOT / (".venv-vllm-gpu" if GPU else ".venv-vllm")
PYTHON = VENV / "bin/python"
STAMP = VENV / ".qlm-vllm"
SCRIPTS = ROOT / "scripts/vllm_cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """How to run the server; the defaults start fast, stay small and compute exactly.

    float32 is the default because in bfloat16 the answer depends on what else is in the batch.
    """

    model_seed: int = 0
    model: Path | None = None
    """A folder with a model, instead of the tiny one."""
    served_model_name: str = "tiny"
    dtype: str = "float32"
    max_model_len: int = 2048
    max_num_seqs: int = 8
    kv_cache_bytes: int = 64 * 2**20
    asynchronous: bool = False
    """Schedule asynchronously on a CPU too, which vLLM itself does not."""
    plain: bool = False
    """Run the unchanged `vllm serve` (about 25 s to start) instead of the forking launcher (about 10 s).

    Always on a GPU."""
    extra_args: tuple[str, ...] = ()
    pythonpath: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


def missing() -> str | None:
    """Say what to install, or None when vLLM is there."""
    kind = "gpu" if GPU else "cpu"
    found = STAMP.exists()
    return None if found else f"vLLM ({kind}) is not installed (scripts/install_vllm_{kind}.sh does it)"


def tiny_model(seed: int = 0, kind: Literal["plain", "talks", "sees"] = "plain") -> Path:
    """Return the folder of the tiny model with this seed, making it on first use (6 s).

    Args:
        seed: Decides the weights.
        kind: `talks`: its answers end, and it calls tools that a user names; its weights are not random.
            `sees`: it takes images.
    """
    folder = ROOT / f"build/tiny-model-{seed}{'' if kind == 'plain' else f'-{kind}'}"
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / ".tiny-model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the workers of pytest-xdist ask at the same moment
        module = "scripts.make_tiny_model"
        made = subprocess.run(
            [PYTHON, "-m", module, folder, "--seed", str(seed), "--kind", kind],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    if made.returncode:
        raise RuntimeError(f"{module} failed:\n{made.stderr}")
    return folder


class VllmServer:
    """A running vLLM; `kill` and `start` play a crash of the engine."""

    def __init__(self, folder: Path, options: VllmOptions) -> None:
        """Prepare a server that logs into `folder`."""
        self.options = options
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.process = ServerProcess(
            "vllm", _command_line(options, self.port), env=_environment(options), folder=folder
        )

    def start(self, *, timeout_s: float = 110.0) -> float:
        """Start, wait until /health says 200, and return the seconds that took."""
        self.process.start()
        return self.process.wait_ready(self._healthy, timeout_s=timeout_s)

    def kill(self) -> None:
        """End the server, its engine and its workers with SIGKILL."""
        self.process.kill()

    def _healthy(self) -> bool:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)) as connection:
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
            except http.client.HTTPException:
                return False


@contextlib.contextmanager
def running_vllm(options: VllmOptions | None = None) -> Iterator[VllmServer]:
    """Run a private vLLM for the time of the block, with its development endpoints (sleep, wake) open."""
    if reason := missing():
        raise FileNotFoundError(reason)
    with tempfile.TemporaryDirectory(prefix="qlm-vllm-") as folder:
        server = VllmServer(Path(folder), options or VllmOptions())
        try:
            server.start()
            yield server
        finally:
            server.kill()


def _command_line(options: VllmOptions, port: int) -> list[str]:
    model = str(options.model or tiny_model(options.model_seed))
    if options.plain or GPU:  # CUDA does not allow forking
        start = [str(PYTHON.with_name("vllm")), "serve", model]
    else:
        start = [str(PYTHON), str(SCRIPTS / "fast_serve.py"), "--model", model]
    flags = {
        "--served-model-name": options.served_model_name,
        "--host": "127.0.0.1",
        "--port": str(port),
        "--dtype": options.dtype,
        "--max-model-len": str(options.max_model_len),
        "--max-num-seqs": str(options.max_num_seqs),
        "--kv-cache-memory-bytes": str(options.kv_cache_bytes),
        "--block-size": "32",  # the CPU attention kernel takes multiples of 32 only
    }
    switches = ["--enforce-eager", "--enable-scale-out", "--enable-prompt-tokens-details"]
    return [*start, *(word for flag in flags.items() for word in flag), *switches, *options.extra_args]


def _environment(options: VllmOptions) -> dict[str, str]:
    path = options.pythonpath if GPU else (str(SCRIPTS), *options.pythonpath)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONFAULTHANDLER": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        **({} if GPU else {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}),
        **({"QLM_TEST_ASYNC_SCHEDULING": "1"} if options.asynchronous else {}),
        **dict(options.env),
    }
