"""The engine contract on the emulator, as a process of its own, and on a real vLLM on the CPU."""

import asyncio
import contextlib
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qlm.agents.engine_command import EmulateSettings, VllmSettings, emulate_command, vllm_command
from qlm.agents.engine_contract import CHECKS, check_death_is_told
from qlm.agents.engine_probe import EngineFacts, ask, client
from qlm.agents.guard import descendants, start_ticks
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from support import vllm_cpu
from support.ports import free_port
from support.vllm_cpu import VllmServer

Check = Callable[[EngineFacts], Awaitable[None]]

SUPPORT = Path(__file__).parents[1] / "support"
CONTEXT_TOKENS = 2048
SEQS_MAX = 8
VLLM_EOS_ID = 1


class EmulatedEngine:
    """`python -m qlm.simulator.emulation.command` on a port of its own choice, ten times faster than real."""

    def __init__(self) -> None:
        settings = EmulateSettings(
            port=0, model="llama-3-8b", accelerator="A10", time_scale=0.1, seqs_max=SEQS_MAX,
            context_tokens=CONTEXT_TOKENS, mean_output_tokens=50,
        )  # fmt: skip
        command = emulate_command(settings)
        self._process = subprocess.Popen(command.argv, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.base_url = self._process.stdout.readline().split()[-1]

    def end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        code = self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


def facts_of(base_url: str, model: str, ids: range) -> EngineFacts:
    return EngineFacts(
        base_url=base_url, model=model, seqs_max=SEQS_MAX, context_tokens=CONTEXT_TOKENS, ordinary_ids=ids
    )


@pytest.fixture(scope="module")
def emulated() -> Iterator[EngineFacts]:
    engine = EmulatedEngine()
    yield facts_of(engine.base_url, "llama-3-8b", range(256))
    assert engine.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_emulator_keeps_the_contract(emulated: EngineFacts, check: Check) -> None:
    await check(emulated)


async def test_the_emulator_dies_as_the_contract_says() -> None:
    engine = EmulatedEngine()
    facts = facts_of(engine.base_url, "llama-3-8b", range(256))
    await check_death_is_told(facts, lambda: (engine.end(signal.SIGKILL), None)[1])


async def test_an_emulator_told_to_end_breaks_its_streams_off() -> None:
    engine = EmulatedEngine()
    facts = facts_of(engine.base_url, "llama-3-8b", range(256))
    codes: list[int] = []
    await check_death_is_told(facts, lambda: codes.append(engine.end(signal.SIGTERM)))
    assert codes == [0]


@pytest.fixture(scope="module")
def real(vllm_server: VllmServer) -> EngineFacts:
    return facts_of(vllm_server.base_url, "tiny", range(10, 1990))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_vllm_keeps_the_contract(real: EngineFacts, check: Check) -> None:
    await check(real)


async def test_vllm_dies_as_the_contract_says(start_vllm: Callable[..., VllmServer]) -> None:
    server = await asyncio.to_thread(start_vllm)
    await check_death_is_told(facts_of(server.base_url, "tiny", range(10, 1990)), server.kill)


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
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.02)


async def test_vllm_includes_the_eos_that_ends_an_answer(real: EngineFacts) -> None:
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


async def test_the_emulator_includes_the_eos_that_ends_an_answer(emulated: EngineFacts) -> None:
    call = EngineCall(call_id="eos", prompt_ids=(1, 2), sampling=Sampling(max_tokens=1000))
    async with client(emulated) as engine:
        answer = await ask(engine, call)
        assert (answer.token_ids.index(256), answer.finish) == (len(answer.token_ids) - 1, "stop")
