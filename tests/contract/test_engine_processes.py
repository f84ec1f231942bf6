"""Engine tests that differ between vLLM and its emulation: the end of a process, the end of an answer."""

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from contract.suites.engine.probe import ask, client
from contract.suites.engine.servers import CONTEXT_TOKENS, SEQS_MAX, EmulatedEngine, tiny_vllm
from qlm.agents.engines.command import VllmSettings, vllm_command
from qlm.agents.engines.guard import descendants, start_ticks
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from support import vllm_cpu
from support.ports import free_port
from support.vllm_cpu import VllmServer

SUPPORT = Path(__file__).parents[1] / "support"
VLLM_EOS_ID = 1


@pytest.mark.usefixtures("start_vllm")
def test_no_process_of_vllm_survives_the_kill_of_its_agent(tmp_path: Path) -> None:
    port = free_port()
    settings = VllmSettings(
        model=str(vllm_cpu.tiny_model()), served_model_name="tiny", port=port, seqs_max=SEQS_MAX,
        context_tokens=CONTEXT_TOKENS, block_tokens=32, kv_cache_bytes=64 * 2**20, dtype="float32", cpu=True,
        program=str(vllm_cpu.PYTHON.with_name("vllm")),
    )  # fmt: skip
    command = vllm_command(settings)
    argv = [sys.executable, str(SUPPORT / "engine_agent.py"), str(tmp_path / "states"), str(tmp_path / "log")]
    with subprocess.Popen([*argv, *command.argv], env={**os.environ, **command.env}) as agent:
        try:
            wait_for(lambda: answers(port), 110)
            (state_file,) = (tmp_path / "states").iterdir()
            tree = [agent.pid, *descendants(agent.pid)]
            assert len(tree) >= 5, "agent, guard, API server, EngineCore and worker"
        finally:
            agent.kill()
    wait_for(lambda: all(start_ticks(pid) is None for pid in tree), 10)
    wait_for(lambda: not state_file.exists(), 10)


def answers(port: int) -> bool:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False


def wait_for(condition: Callable[[], bool], patience_s: float) -> None:
    end_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end_s, f"not true after {patience_s:g} s"
        time.sleep(0.02)


async def test_vllm_includes_the_eos_that_ends_an_answer(vllm_server: VllmServer) -> None:
    real = tiny_vllm(vllm_server.base_url)
    bias = ((VLLM_EOS_ID, 100.0),)
    call = real.call("eos")
    sampling = Sampling(max_tokens=9, temperature=0.0, logit_bias=bias)
    async with client(real) as engine:
        answer = await ask(engine, replace(call, sampling=sampling))
        assert (answer.token_ids, answer.finish) == ((VLLM_EOS_ID,), "stop")
        answer = await ask(engine, replace(call, sampling=replace(sampling, min_tokens=3)))
        assert (len(answer.token_ids), answer.token_ids[3:], answer.finish) == (4, (VLLM_EOS_ID,), "stop")
        answer = await ask(engine, replace(call, sampling=replace(sampling, ignore_eos=True)))
        assert (answer.token_ids, answer.finish) == ((VLLM_EOS_ID,) * 9, "length")


async def test_the_emulator_includes_the_eos_that_ends_an_answer() -> None:
    emulated = EmulatedEngine()
    call = EngineCall(call_id="eos", prompt_ids=(1, 2), sampling=Sampling(max_tokens=1000))
    async with client(emulated.server) as engine:
        answer = await ask(engine, call)
        assert (answer.token_ids.index(256), answer.finish) == (len(answer.token_ids) - 1, "stop")
    emulated.end(signal.SIGTERM)
