"""An engine that declines requests, as by 401, gets no more until it has generated a token; none fails."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qlm.agents.core.events import EngineChanged, EngineProbed, GenerationEnded, Pulled
from qlm.agents.core.lifecycle import LOSSES_MAX
from qlm.agents.engines.http.statuses import StatusError, error_of
from qlm.agents.engines.vllm.client import VllmEngine
from qlm.domain.actions import Append, ProbeEngine, Pull, PulledMessage, RestartEngine, Return, Submit
from qlm.domain.errors import EngineUnavailableError
from qlm.domain.fleet import EngineState
from qlm.domain.outcome import Outcome
from qlm.domain.ports.engine import EngineCall, EngineChunk
from qlm.domain.sampling import Sampling
from support.agent_bench import Bench, M, delivery_of, group_of
from support.flaky import until
from support.plant import Plant, ScriptedEngine, plant
from support.requests import a_request

WHY = "the engine answered 401: no"


def decline(bench: Bench, submit: Submit, *, blameless: bool = True) -> None:
    call_id = submit.call.call_id
    bench.send(GenerationEnded(call_id=call_id, finish="declined", detail=WHY, blameless=blameless))
    bench.later(0.05)


def losses(bench: Bench) -> list[int | None]:
    appends = [each for each in bench.actions if isinstance(each, Append)]
    return [entry.extensions.engine_losses for append in appends for entry in append.entries]


def test_it_draws_nothing_and_has_to_generate_a_token() -> None:
    bench = Bench()
    decline(bench, bench.start(a_request("a")))
    bench.queue(group_of(a_request("b")))
    assert not bench.take(Pull)
    assert [probe.token_s > 0 for probe in bench.take(ProbeEngine)] == [True]
    assert (M, EngineState.FAILED) in bench.agent.status().engines, "plans avoid it"
    assert WHY in bench.agent.status().error
    bench.send(EngineProbed(healthy=True, by_token=True))
    assert bench.take(Pull)
    assert not bench.agent.status().error


def test_one_that_declines_the_token_too_fails_without_a_strike_for_standing_still() -> None:
    bench = Bench()
    decline(bench, bench.start(a_request("a")))
    bench.send(EngineProbed(healthy=False, by_token=True, declined=WHY))
    assert [restart.why for restart in bench.take(RestartEngine)] == [f"it declines to serve: {WHY}"]
    bench.send(EngineProbed(healthy=False, by_token=True, declined=WHY))
    assert not bench.take(RestartEngine), "once is enough"
    bench.send(EngineChanged(model=M, state=EngineState.FAILED, error=WHY))
    assert not bench.agent.state.stats.progress.restarted


def test_what_runs_in_it_goes_on_and_what_waits_for_it_moves() -> None:
    """A proxy with a limit of requests at once answers 429 beside those that it let through."""
    bench = Bench(seqs_max=3)
    running, declined = bench.start(a_request("running")), bench.start(a_request("declined"))
    pulled = a_request("pulled")
    message = PulledMessage(delivery=delivery_of(pulled), request=pulled)
    bench.send(Pulled(group=None, limit=0, messages=(message,)))
    decline(bench, declined)
    bench.log[pulled.id] = []
    bench.answer(pulled, bench.granted())
    assert not bench.take(Submit)
    bench.store_appends()
    assert [each.id for each in bench.take(Return)] == ["declined"]
    bench.send(EngineProbed(healthy=False, by_token=True, declined=WHY))
    bench.store_appends()
    assert [each.id for each in bench.take(Return)] == ["pulled"]
    assert not bench.take(RestartEngine)
    assert running.call.call_id in bench.agent.state.requests.calls
    bench.send(GenerationEnded(call_id=running.call.call_id, finish="length"))
    bench.later(1.0)
    bench.send(EngineProbed(healthy=False, by_token=True, declined=WHY))
    assert bench.take(RestartEngine)


@pytest.mark.parametrize(("blameless", "counted"), [(True, []), (False, [1])])
def test_only_what_the_request_may_have_brought_about_counts_against_it(
    blameless: bool, counted: list[int]
) -> None:
    bench = Bench()
    decline(bench, bench.start(a_request("a")), blameless=blameless)
    assert losses(bench) == counted
    bench.store_appends()
    assert [each.id for each in bench.take(Return)] == ["a"]


def test_an_end_that_comes_after_the_engine_is_down_suspects_nothing() -> None:
    bench = Bench()
    submit = bench.start(a_request("a"))
    bench.agent.state.engines.begin_swap(M)
    decline(bench, submit)
    assert not bench.agent.state.engines.suspect


class Server(ScriptedEngine):
    """An engine behind a proxy that answers calls for tokens with `status`."""

    status = 200
    answered = 0

    async def generate(self, call: EngineCall) -> AsyncIterator[EngineChunk]:
        if self.status != 200:
            self.answered += 1
            raise error_of(self.status, b"no")
        async for chunk in super().generate(call):
            yield chunk


def behind_a_proxy(it: Plant, status: int) -> Server:
    server = it.engines[M]
    server.__class__ = Server
    assert isinstance(server, Server)
    server.status = status
    return server


@pytest.mark.parametrize("status", [302, 401, 404, 429, 503])
async def test_its_requests_wait_until_it_serves_again(
    tmp_path: Path, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.agents.core.stats.progress.FAILED_PAUSE_NS", 1_000_000)
    async with plant(tmp_path) as it:
        await it.accept(a_request("first"))
        await until(it.all_ended)
        server = behind_a_proxy(it, status)
        await it.accept(a_request("waits"))
        await until(lambda: server.answered >= 4 * LOSSES_MAX, 30.0)
        server.status = 200
        await it.all_end_exactly_once()


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_one_that_answers_everything_with_an_error_is_stopped_before_the_requests_fail(
    tmp_path: Path, status: int
) -> None:
    """It answered faster than any other engine, and so failed all that waited."""
    async with plant(tmp_path) as it:
        await it.accept(a_request("first"))
        await until(it.all_ended)
        server, engines = behind_a_proxy(it, status), it.protocol.state.engines
        await it.accept(*(a_request(f"r{n}") for n in range(6)))
        await until(lambda: M in engines.failed_until_ns)
        assert f"answered {status}" in it.protocol.status().error
        server.status = 200
        engines.failed_until_ns.clear()
        await it.all_end_exactly_once()


async def test_a_request_that_a_proxy_forbids_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the words in it: the engine serves others, such as the probes."""
    async with plant(tmp_path) as it:
        await it.accept(a_request("first"))
        await until(it.all_ended)
        server = behind_a_proxy(it, 200)
        generate = server.generate

        async def forbidding(call: EngineCall) -> AsyncIterator[EngineChunk]:
            if not call.call_id.startswith("probe-"):
                raise error_of(403, b"forbidden words")
            async for chunk in generate(call):
                yield chunk

        monkeypatch.setattr(server, "generate", forbidding)
        await it.accept(a_request("forbidden"))
        await until(it.all_ended)
        assert await it.outcome(it.requests[1].id) is Outcome.FAILED


async def test_a_status_of_the_route_for_media_says_nothing_of_that_for_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ask(*args: object, **kwargs: object) -> bytes:
        raise error_of(404, b"no such route")

    engine = VllmEngine("http://127.0.0.1:1", "m", seqs_max=1)
    monkeypatch.setattr(engine, "_ask", ask)
    monkeypatch.setattr("qlm.agents.engines.vllm.client.render_body", lambda *_: b"{}")
    call = EngineCall(call_id="c", prompt_ids=(1,), sampling=Sampling(max_tokens=1))
    with pytest.raises(EngineUnavailableError, match="no such route") as raised:
        await engine.prepare(call, b"{}")
    assert not isinstance(raised.value, StatusError)
    await engine.close()
