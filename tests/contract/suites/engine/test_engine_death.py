"""Contract of every engine: its death is visible to its clients."""

from contract.suites.engine.probe import Running, ask, client
from contract.suites.engine.servers import MortalEngine
from qlm.domain.errors import EngineUnavailableError


async def test_a_dead_engine_breaks_its_streams_and_cannot_be_reached(mortal: MortalEngine) -> None:
    """Streams of a dying engine end with an error; later calls fail, and it is not healthy."""
    server = mortal.server
    async with client(server) as engine:
        running = Running(engine, server.endless("dying"))
        await running.reached(3)
        mortal.kill()
        for awaitable in (running.end(), ask(engine, server.call("late")), engine.capacity()):
            try:
                await awaitable
            except EngineUnavailableError:
                continue
            raise AssertionError("a call to a dead engine succeeded")
        assert not await engine.healthy()
