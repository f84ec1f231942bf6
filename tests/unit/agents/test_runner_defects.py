"""A defect of the agent's core ends the agent, wherever it shows."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from qlm.agents.core.agent import Agent
from qlm.agents.core.events import Event, Progress, QueueRead, Tick
from qlm.domain.actions import Action
from qlm.domain.notices import CancelAsked
from support.flaky import until
from support.plant import M, plant
from support.requests import a_request


def break_at(kind: type[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the core a defect that shows at events of a kind."""
    take = Agent.take

    def broken(agent: Agent, events: Iterable[Event], now_ns: int) -> list[Action]:
        events = tuple(events)
        if any(isinstance(each, kind) for each in events):
            raise RuntimeError("a defect")
        return take(agent, events, now_ns)

    monkeypatch.setattr(Agent, "take", broken)


@pytest.mark.parametrize("kind", [QueueRead, CancelAsked, Progress])
async def test_a_defect_of_the_core_ends_the_agent_wherever_it_shows(
    tmp_path: Path, kind: type[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a poll, a notice or a token: what it had decided is lost, so it may not go on."""
    async with plant(tmp_path) as it:
        it.engines[M].tokens_max = 2
        await it.accept(a_request())
        await until(lambda: it.engines[M].made == 2)
        break_at(kind, monkeypatch)
        if kind is CancelAsked:
            await it.store.cancel(it.requests[0].id)
        it.engines[M].tokens_max = 1000 if kind is Progress else 2
        await until(it.running.done)


async def test_a_defect_that_shows_in_a_timer_ends_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.agents.shell.runner.POLL_S", 600.0)  # its tasks end the agent anyway
    async with plant(tmp_path) as it:
        await it.accept(a_request())
        await it.all_end_exactly_once()
        break_at(Tick, monkeypatch)
        with pytest.raises(RuntimeError, match="a defect"):
            it.runner.post(Tick())
        await until(it.running.done)
