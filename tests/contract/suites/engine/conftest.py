"""Engine under test: the emulator, and a real vLLM on the CPU."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from contract.suites.engine.probe import EngineServer
from contract.suites.engine.servers import EmulatedEngine, MortalEngine, tiny_vllm

_VLLM = pytest.param("vllm", marks=pytest.mark.vllm)


@pytest.fixture(scope="module", params=["emulated", _VLLM])
def server(request: pytest.FixtureRequest) -> Iterator[EngineServer]:
    """A running engine of each kind."""
    if request.param == "vllm":
        yield tiny_vllm(request.getfixturevalue("vllm_server").base_url)
        return
    engine = EmulatedEngine()
    yield engine.server
    assert engine.end(signal.SIGTERM) == 0


@pytest.fixture(params=["emulated", "emulated-terminated", _VLLM])
async def mortal(request: pytest.FixtureRequest) -> AsyncIterator[MortalEngine]:
    """An engine of each kind that the test may kill; the emulator ends on SIGKILL and on SIGTERM."""
    if request.param == "vllm":
        vllm = await asyncio.to_thread(request.getfixturevalue("start_vllm"))
        yield MortalEngine(tiny_vllm(vllm.base_url), vllm.kill)
        return
    terminated = request.param == "emulated-terminated"
    engine, codes = EmulatedEngine(), list[int]()
    number = signal.SIGTERM if terminated else signal.SIGKILL
    yield MortalEngine(engine.server, lambda: codes.append(engine.end(number)))
    assert codes == [0 if terminated else -signal.SIGKILL]
