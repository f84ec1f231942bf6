"""An attached engine serves once it has generated a token; its health alone does not say that it can."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from qlm.agents.core.events import EngineChanged
from qlm.agents.engines import attached
from qlm.agents.engines.attached import AttachedEngine
from qlm.agents.engines.http.statuses import error_of
from qlm.agents.engines.model_host import ModelHost
from qlm.domain.errors import EngineUnavailableError
from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.ids import ModelId
from qlm.domain.ports.engine import EngineCall, EngineChunk
from qlm.rct_estimator.host_memory import SwapCost
from support.flaky import until

M = ModelId("m")


class Server:
    """A healthy engine that reports its capacity, and answers calls for tokens with `status`."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.calls: list[EngineCall] = []

    async def healthy(self) -> bool:
        return True

    async def capacity(self) -> EngineCapacity:
        return EngineCapacity(kv_tokens=100, block_tokens=1, seqs_max=1, context_tokens=10)

    async def generate(self, call: EngineCall) -> AsyncIterator[EngineChunk]:
        self.calls.append(call)
        if self.status != 200:
            raise error_of(self.status, b'{"detail": "Not Found"}')
        yield EngineChunk(token_ids=(5,), finish="length")

    async def abort(self, call_ids: object) -> None: ...
    async def sleep(self, level: int = 1) -> None: ...
    async def wake(self) -> None: ...
    async def close(self) -> None: ...


def host_of(server: Server) -> ModelHost:
    engine = AttachedEngine(server, "http://engine", context_tokens=10, ready_timeout_s=5.0)
    return ModelHost({M: engine}, costs={M: SwapCost(weights_bytes=1)}, host_memory_bytes=0)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 503])
async def test_one_that_gives_no_token_fails_with_what_it_answered(status: int) -> None:
    """Such as a vLLM without `--enable-scale-out`: it drew all work of its model, and refused it."""
    host = host_of(Server(status))
    change = await host.swap(M)
    assert change.state is EngineState.FAILED
    assert f"answered {status}" in change.error
    assert "Not Found" in change.error
    await host.close()


async def test_one_that_gives_a_token_serves() -> None:
    server = Server()
    host = host_of(server)
    assert (await host.swap(M)).state is EngineState.AWAKE
    assert [call.sampling.max_tokens for call in server.calls] == [1]
    await host.close()


@pytest.mark.parametrize(("context_tokens", "warned"), [(10, False), (9, False), (11, True)])
async def test_one_with_a_smaller_context_than_gateways_accept_is_named(
    context_tokens: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine = AttachedEngine(Server(), "http://engine", context_tokens=context_tokens, ready_timeout_s=5.0)
    await engine.start()
    assert ("http://engine has a context of 10 tokens" in caplog.text) is warned
    assert ("expected at most 10" in caplog.text) is warned


async def test_one_that_stood_still_has_less_time_for_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = list[float]()

    async def prove(engine: object, limit_s: float) -> None:
        limits.append(limit_s)

    monkeypatch.setattr(attached, "prove_token", prove)
    engine = AttachedEngine(Server(), "http://engine", context_tokens=10, ready_timeout_s=5.0)
    await engine.start()
    engine.hangs()
    await engine.start()
    await engine.start()
    assert limits == [attached.FIRST_PROOF_S, attached.PROOF_S, attached.FIRST_PROOF_S]


class Busy(Server):
    """A server whose first token waits for `free`, behind the requests of others."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.answers = True

    async def healthy(self) -> bool:
        return self.answers

    async def generate(self, call: EngineCall) -> AsyncIterator[EngineChunk]:
        async for chunk in super().generate(call):
            await self.free.wait()
            yield chunk


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a first token be late at once, and health probes follow each other."""
    monkeypatch.setattr(attached, "FIRST_PROOF_S", 0.01)
    monkeypatch.setattr(attached, "PROBE_S", 0.01)


@pytest.mark.usefixtures("short")
async def test_one_that_others_keep_busy_joins_with_its_first_token(caplog: pytest.LogCaptureFixture) -> None:
    server = Busy()
    host = host_of(server)
    swap = asyncio.create_task(host.swap(M))
    await until(lambda: "has generated no token" in caplog.text)
    server.free.set()
    assert (await swap).state is EngineState.AWAKE
    assert len(server.calls) == 1, "a second call would wait behind others again"
    await host.close()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("dies", [False, True])
async def test_one_that_gives_no_token_at_all_fails(dies: bool) -> None:
    server = Busy()
    engine = AttachedEngine(server, "http://engine", context_tokens=10, ready_timeout_s=60.0 if dies else 0.1)
    start = asyncio.create_task(engine.start())
    await until(lambda: server.calls)
    server.answers = not dies
    with pytest.raises(EngineUnavailableError, match="failed 4 health probes" if dies else "no token within"):
        await start
    await engine.close()


class Replaceable(Server):
    """A server that another one may replace at its address, with or without a probe in between."""

    def __init__(self) -> None:
        super().__init__()
        self.context_tokens, self.kv_tokens = 10, 100
        self.probes = self.down_for = self.asked = 0

    async def healthy(self) -> bool:
        self.probes += 1
        self.down_for = max(0, self.down_for - 1)
        return not self.down_for

    async def capacity(self) -> EngineCapacity:
        self.asked += 1
        limits = {"context_tokens": self.context_tokens, "kv_tokens": self.kv_tokens}
        return replace(await super().capacity(), **limits)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("down_for", [0, 2])
async def test_one_that_another_with_other_limits_replaces_fails_and_is_asked_anew(down_for: int) -> None:
    server, changes = Replaceable(), list[EngineChanged]()
    host = host_of(server)
    host.subscribe(lambda change: changes.append(change) if isinstance(change, EngineChanged) else None)
    await host.swap(M)
    await until(lambda: server.probes > 2)
    server.down_for, server.context_tokens = down_for, 5
    await until(lambda: changes)
    assert changes[0].state is EngineState.FAILED
    assert "other limits than before: context_tokens 5, was 10" in changes[0].error
    change = await host.swap(M)
    assert change.capacity is not None and change.capacity.context_tokens == 5
    await host.close()


@pytest.mark.usefixtures("short")
async def test_one_that_comes_back_with_nearly_its_limits_goes_on() -> None:
    """The KV cache of the same server differs a little from start to start."""
    server, changes = Replaceable(), list[object]()
    host = host_of(server)
    host.subscribe(changes.append)
    await host.swap(M)
    await until(lambda: server.probes > 2)
    server.down_for, server.kv_tokens, asked = 2, 96, server.asked
    await until(lambda: server.asked > asked)
    assert not changes
    await host.close()
