"""Keeps one actor per instance on a Ray cluster: makes what is missing, ends what is not wanted.

Ray restarts what dies. The supervisor makes actors, says what waits for a place and why, and stops them:
first drained, so that their work goes elsewhere in order, then for good. Nothing depends on it while they
run: what a supervisor that was killed left on a cluster, the next one finds by name.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from qlm.agents.ray.cluster import AgentSpec, RayCluster, RayUnavailableError
from qlm.agents.ray.placement import fits, why_it_waits
from qlm.domain.errors import QlmError, StoreUnavailableError
from qlm.domain.ids import InstanceId
from qlm.domain.shown import cut

log = logging.getLogger("qlm.agents")

AskDrain = Callable[[InstanceId], Awaitable[bool]]
"""Asks an instance to drain; False if it is not alive."""

SayUnplaced = Callable[[InstanceId, str, float], Awaitable[None]]
"""Says that an instance has no place, and why, for so many seconds."""

NOTICE_S: Final = 5.0
"""How often an actor without a place is looked at."""

UNPLACED_TTL_S: Final = 20.0
"""How long what was said of that counts, should it not be said again."""

RETRY_S: Final = 0.5
"""Pause before an actor that Ray is starting again is asked again."""

DRAIN_MAX_S: Final = 10.0
"""How long an agent that is to stop may take to give its work back and to stop its engines."""

STOP_MAX_S: Final = 10.0
"""How long one that did not drain may take to stop its engines, before it is killed."""


TOLD_CHARACTERS_MAX: Final = 300
"""Of what Ray says of an error, in a log line."""


class NoPlaceError(QlmError):
    """No instance fits on any node."""


class Supervisor:
    """The supervisor of some agents; `run` works until cancelled or until all are drained.

    Args:
        cluster: Where they run.
        specs: The agents.
        ask_drain: How an agent is asked to give its work back.
        say_unplaced: Where those who look at instances hear of one that has no place.
    """

    def __init__(
        self,
        cluster: RayCluster,
        specs: Sequence[AgentSpec],
        ask_drain: AskDrain,
        say_unplaced: SayUnplaced,
    ) -> None:
        self._cluster = cluster
        self._specs = {spec.instance: spec for spec in specs}
        self._ask_drain = ask_drain
        self._say_unplaced = say_unplaced
        self._actors: dict[str, Any] = {}
        self._placed: set[str] = set()

    async def run(self) -> None:
        """Keep the agents running; in the end stop them.

        Raises:
            NoPlaceError: Not one of them fits, and no node will ever join.
            RayUnavailableError: A Ray of our own has ended, or the one that we joined has started anew.
        """
        await self._check_places()
        await asyncio.gather(*(self._retire(name) for name in await self._unwanted()))
        attending = [asyncio.create_task(self._attend(spec)) for spec in self._specs.values()]
        try:
            await asyncio.gather(*attending)
        except RayUnavailableError:
            self._actors.clear()  # they end with their Ray
            raise
        finally:
            for task in attending:
                task.cancel()
            await asyncio.gather(*attending, return_exceptions=True)
            await asyncio.gather(*(self._stop(name, actor) for name, actor in self._actors.items()))

    async def _check_places(self) -> None:
        nodes = await asyncio.to_thread(self._cluster.nodes)
        homeless = [spec for spec in self._specs.values() if not fits(spec.resources, nodes)]
        if self._cluster.own and homeless and len(homeless) == len(self._specs):
            first = homeless[0]
            raise NoPlaceError(
                f"no instance fits on this machine: {first.instance}: {why_it_waits(first.resources, nodes)}"
            )

    async def _unwanted(self) -> list[str]:
        names = await asyncio.to_thread(self._cluster.instances)
        return [name for name in names if name not in self._specs]

    async def _retire(self, instance: str) -> None:
        """Drain and end an actor of a former fleet."""
        actor = await asyncio.to_thread(self._cluster.find, instance)
        if actor is not None:
            log.info("%s is no longer in the configuration: its agent ends", instance)
            self._placed.add(instance)
            await self._stop(instance, actor)

    async def _attend(self, spec: AgentSpec) -> None:
        """See to one instance until its agent has been drained."""
        while True:
            try:
                actor = await asyncio.to_thread(self._cluster.make, spec)
                self._actors[spec.instance] = actor
                if await self._follow(spec, actor):
                    log.info("%s is drained", spec.instance)
                    await self._kill(spec.instance, actor)
                    return
                log.info("%s: an agent of another configuration is replaced", spec.instance)
                await self._stop(spec.instance, actor)
            except self._cluster.away as error:
                log.error("%s: its actor is dead (%s); a new one starts", spec.instance, _told(error))
                await asyncio.to_thread(self._cluster.check)
            self._placed.discard(spec.instance)
            await asyncio.sleep(RETRY_S)

    async def _follow(self, spec: AgentSpec, actor: Any) -> bool:
        """Wait until an agent has been drained; False at once if it is one of another recipe."""
        away = False
        while True:
            try:
                recipe, pid = await self._placed_at(spec, actor)
                away = False
                if recipe != spec.recipe:
                    return False
                log.info("%s: agent runs under Ray, in process %d", spec.instance, pid)
                await _answer(actor.drained.remote())
                return True
            except self._cluster.gone:
                raise
            except self._cluster.away as error:
                if not away:
                    log.warning("%s: agent is away (%s); Ray starts it again", spec.instance, _told(error))
                away = True
                await asyncio.to_thread(self._cluster.check)
                await asyncio.sleep(RETRY_S)

    async def _placed_at(self, spec: AgentSpec, actor: Any) -> tuple[str, int]:
        """Wait until an actor runs; meanwhile say why it does not."""
        asked = asyncio.ensure_future(_answer(actor.about.remote()))
        told = ""
        try:
            while not (await asyncio.wait({asked}, timeout=NOTICE_S))[0]:
                nodes = await asyncio.to_thread(self._cluster.nodes)
                if self._cluster.own and not nodes:
                    raise RayUnavailableError("the Ray that was started here has ended; start again")
                if (why := why_it_waits(spec.resources, nodes)) != told:
                    level = logging.INFO if fits(spec.resources, nodes) else logging.WARNING
                    log.log(level, "%s waits for a place: %s", spec.instance, why)
                    told = why
                with contextlib.suppress(StoreUnavailableError):  # it is said again
                    await self._say_unplaced(InstanceId(spec.instance), why, UNPLACED_TTL_S)
            recipe, pid = asked.result()
        finally:
            asked.cancel()
        self._placed.add(spec.instance)
        return recipe, pid

    async def _stop(self, instance: str, actor: Any) -> None:
        """Drain an agent, stop it if that takes too long, and end its actor."""
        if instance in self._placed and not await self._drained(instance, actor):
            try:
                async with asyncio.timeout(STOP_MAX_S):
                    await _answer(actor.stop.remote())
            except (TimeoutError, self._cluster.away) as error:
                log.warning("%s: did not stop (%s): killed", instance, _told(error))
        await self._kill(instance, actor)

    async def _drained(self, instance: str, actor: Any) -> bool:
        try:
            async with asyncio.timeout(DRAIN_MAX_S):
                if await self._ask_drain(InstanceId(instance)):
                    await _answer(actor.drained.remote())
                    return True
        except (TimeoutError, QlmError, self._cluster.away) as error:
            log.warning("%s: not drained: %s", instance, _told(error))
        return False

    async def _kill(self, instance: str, actor: Any) -> None:
        self._actors.pop(instance, None)
        await asyncio.to_thread(self._cluster.kill, actor)


async def _answer(ref: Any) -> Any:
    """Wait for the answer to a call, on the running loop."""
    return await asyncio.wrap_future(ref.future())


def _told(error: Exception) -> str:
    """The first and the last line of what Ray says: what happened, and what it knows of why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return cut("; ".join(dict.fromkeys((lines[0], lines[-1]))), TOLD_CHARACTERS_MAX) if lines else "no answer"
