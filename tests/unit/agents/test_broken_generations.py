"""An engine that breaks off generations while it is healthy: after the second, health is not enough."""

from collections.abc import AsyncIterator
from pathlib import Path

from qlm.agents.core.events import EngineProbed, GenerationEnded, Progress
from qlm.domain.actions import ProbeEngine, Submit
from qlm.domain.errors import EngineUnavailableError
from qlm.domain.ports.engine import EngineCall, EngineChunk
from support.agent_bench import Bench
from support.flaky import until
from support.plant import M, ScriptedEngine, plant
from support.requests import a_request

WHY = "the engine reports: internal error"


def broken_off(bench: Bench, submit: Submit, *, tokens: tuple[int, ...] = ()) -> list[bool]:
    """Let a generation end early; return of each probe that follows whether it needs a token."""
    call_id = submit.call.call_id
    if tokens:
        bench.send(Progress(chunks=((call_id, tokens),)))
    bench.send(GenerationEnded(call_id=call_id, finish="lost", detail=WHY))
    bench.later(1.0)
    return [probe.token_s > 0 for probe in bench.take(ProbeEngine)]


def test_health_is_enough_after_one_and_a_token_is_needed_after_the_next() -> None:
    bench = Bench()
    assert broken_off(bench, bench.start(a_request("a"))) == [False]
    bench.send(EngineProbed(healthy=True, by_token=False))
    assert broken_off(bench, bench.start(a_request("b"))) == [True]


def test_health_is_enough_if_tokens_came_in_between() -> None:
    """As where a proxy limits the time of a stream."""
    bench = Bench()
    for n in range(3):
        assert broken_off(bench, bench.start(a_request(f"r{n}")), tokens=(5,)) == [False]
        bench.send(EngineProbed(healthy=True, by_token=False))


class Breaking(ScriptedEngine):
    """An engine that breaks off every generation at its beginning."""

    broken = True

    async def generate(self, call: EngineCall) -> AsyncIterator[EngineChunk]:
        if self.broken:
            raise EngineUnavailableError(WHY)
        async for chunk in super().generate(call):
            yield chunk


async def test_it_is_stopped_before_the_requests_fail(tmp_path: Path) -> None:
    """It did so faster than any other engine served, and so failed all that waited."""
    async with plant(tmp_path) as it:
        await it.accept(a_request("first"))
        await until(it.all_ended)
        engine, engines = it.engines[M], it.protocol.state.engines
        engine.__class__ = Breaking
        assert isinstance(engine, Breaking)
        await it.accept(*(a_request(f"r{n}") for n in range(6)))
        await until(lambda: M in engines.failed_until_ns)
        engine.broken = False
        engines.failed_until_ns.clear()
        await it.all_end_exactly_once()
