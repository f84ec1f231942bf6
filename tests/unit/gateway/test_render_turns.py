"""Turns at a render tier: bounded, fair, first pieces first, and none lost with a client that leaves."""

import asyncio

from qlm.gateway.render.turns import Turns
from support.gateway import until


class Users:
    """Streams that each take one turn and keep it until they are let go."""

    def __init__(self, count: int) -> None:
        self.turns = Turns(count)
        self.had: list[str] = []
        self.leave: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, name: str, *, first: bool = False) -> None:
        """Start a stream, and wait until it has a turn or waits for one."""
        self.leave[name] = asyncio.Event()
        seen = len(self.had) + self.turns.waiting
        self.tasks[name] = asyncio.create_task(self._use(name, first))
        await until(lambda: len(self.had) + self.turns.waiting > seen)

    async def end(self, name: str) -> None:
        self.leave[name].set()
        await self.tasks[name]

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks[name], return_exceptions=True)

    async def have_had(self, *names: str) -> None:
        await until(lambda: len(self.had) >= len(names))
        assert self.had == list(names)

    async def _use(self, name: str, first: bool) -> None:
        async with self.turns.one(first=first):
            self.had.append(name)
            await self.leave[name].wait()


async def test_no_more_than_its_number_at_once_and_in_the_order_of_arrival() -> None:
    users = Users(2)
    for name in "abcd":
        await users.start(name)
    assert users.had == ["a", "b"]
    await users.end("b")
    await users.have_had("a", "b", "c")
    await users.end("a")
    await users.have_had("a", "b", "c", "d")


async def test_the_first_piece_of_an_answer_goes_before_others() -> None:
    users = Users(1)
    await users.start("a")
    await users.start("later")
    await users.start("first", first=True)
    await users.end("a")
    await users.have_had("a", "first")


async def test_one_that_leaves_while_it_waits_takes_no_turn() -> None:
    users = Users(1)
    for name in "abc":
        await users.start(name)
    await users.cancel("b")
    await users.end("a")
    await users.have_had("a", "c")
    await users.end("c")
    await users.start("d")
    assert users.had == ["a", "c", "d"]


async def test_one_that_leaves_as_it_gets_its_turn_passes_it_on() -> None:
    users = Users(1)
    async with users.turns.one(first=False):
        for name in "bc":
            await users.start(name)
    users.tasks["b"].cancel()  # it was given the turn, and has not run since
    await users.have_had("c")


async def test_a_call_that_fails_gives_its_turn_back() -> None:
    turns = Turns(1)
    for _ in range(2):
        try:
            async with turns.one(first=True):
                raise ValueError("a call that fails")
        except ValueError:
            continue
    async with asyncio.timeout(1), turns.one(first=False):
        pass
