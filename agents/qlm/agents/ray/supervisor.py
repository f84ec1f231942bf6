"""Supervisor of agents on a Ray cluster: creates one actor per instance, ends actors no longer configured.

Ray restarts actors that die. The supervisor creates actors, reports those that cannot be placed, and stops
them: it drains each first, so that its requests move to other instances, then kills it. Running actors do not
need it: after the death of a supervisor, the next one finds them by name.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from qlm.agents.core.node_placement import fits, waiting_reason
from qlm.agents.ray.cluster import AgentSpec, RayCluster, RayUnavailableError
from qlm.domain.errors import QlmError
from qlm.domain.ids import InstanceId
from qlm.domain.shell.faults import FaultLog
from qlm.domain.shell.tasks import end_tasks
from qlm.domain.shown import cut

log = logging.getLogger("qlm.agents")

AskDrain = Callable[[InstanceId], Awaitable[bool]]
"""Requests an instance to drain; False if it is not alive."""

ReportUnplaced = Callable[[InstanceId, str, float], Awaitable[None]]
"""Reports an instance that is not placed, with the reason and the seconds for which the report is valid."""

PLACEMENT_CHECK_S: Final = 5.0
"""Interval between checks of an actor that is not placed."""

UNPLACED_TTL_S: Final = 20.0
"""Validity of a report of an unplaced instance."""

RETRY_S: Final = 0.5
"""Pause before the next call to an actor that Ray is restarting, and after a first failure."""

RETRY_MAX_S: Final = 30.0
"""Longest pause after failures, which doubles with each; time without one after which it is short again."""

DRAIN_MAX_S: Final = 10.0
"""Time that an agent has to return its requests and stop its engines."""

STOP_MAX_S: Final = 10.0
"""Time that an agent which did not drain has to stop its engines, before Ray has as long to kill it."""

ERROR_CHARACTERS_MAX: Final = 300
"""Length of an error of Ray in a log line."""


class NoPlaceError(QlmError):
    """No instance fits on any node."""


class Supervisor:
    """Supervisor of the agents in `specs`; `run` works until cancelled or until all are drained."""

    def __init__(
        self,
        cluster: RayCluster,
        specs: Sequence[AgentSpec],
        ask_drain: AskDrain,
        report_unplaced: ReportUnplaced,
        faults: FaultLog | None = None,
    ) -> None:
        self._cluster = cluster
        self._specs = {spec.instance: spec for spec in specs}
        self._ask_drain = ask_drain
        self._report_unplaced = report_unplaced
        self._faults = faults or FaultLog()
        self._actors: dict[str, Any] = {}
        self._placed: set[str] = set()

    async def run(self) -> None:
        """Keep the agents running; on return, stop them.

        Raises:
            NoPlaceError: None of them fits, and no node will ever join.
            RayUnavailableError: The Ray started here has ended, or the head of the cluster has restarted.
        """
        await self._check_places()
        former = await self._no_longer_configured()
        tasks = [asyncio.create_task(self._repeated(name, partial(self._retire, name))) for name in former]
        try:
            if tasks:  # they free the places that others need
                await asyncio.wait(tasks, timeout=DRAIN_MAX_S + STOP_MAX_S)
            for name, spec in self._specs.items():
                tasks.append(asyncio.create_task(self._repeated(name, partial(self._supervise, spec))))
            await asyncio.gather(*tasks)
        except RayUnavailableError:
            self._actors.clear()  # they end with their Ray
            raise
        finally:
            await end_tasks(tasks)
            await asyncio.gather(
                *(self._end(self._stop, name, actor) for name, actor in self._actors.items())
            )

    async def _check_places(self) -> None:
        nodes = await asyncio.to_thread(self._cluster.nodes)
        unplaceable = [spec for spec in self._specs.values() if not fits(spec.resources, nodes)]
        if self._cluster.own and unplaceable and len(unplaceable) == len(self._specs):
            first = unplaceable[0]
            reason = waiting_reason(first.resources, nodes)
            raise NoPlaceError(f"no instance fits on this machine: {first.instance}: {reason}")

    async def _no_longer_configured(self) -> list[str]:
        names = await asyncio.to_thread(self._cluster.instances)
        return [name for name in names if name not in self._specs]

    async def _retire(self, instance: str) -> bool:
        """Drain and end an actor of an earlier configuration."""
        actor = await asyncio.to_thread(self._cluster.find, instance)
        if actor is not None:
            log.info("%s is no longer in the configuration: its agent ends", instance)
            self._placed.add(instance)
            await self._stop(instance, actor)
        return True

    async def _repeated(self, instance: str, turn: Callable[[], Awaitable[bool]]) -> None:
        """Repeat the turns of one instance until one returns true; a failure costs that turn only.

        Raises:
            RayUnavailableError: There is no Ray any more.
        """
        loop, longer_s = asyncio.get_running_loop(), RETRY_S
        while True:
            began_s, pause_s = loop.time(), RETRY_S
            try:
                if await turn():
                    return
                longer_s = RETRY_S
            except RayUnavailableError:
                raise
            except Exception as error:
                self._faults.note(log, error, "%s: supervision failed, and is tried again", instance)
                pause_s = RETRY_S if loop.time() - began_s > RETRY_MAX_S else longer_s
                longer_s = min(2 * pause_s, RETRY_MAX_S)
            await asyncio.sleep(pause_s)

    async def _supervise(self, spec: AgentSpec) -> bool:
        """Keep the agent of one instance running; True once it has been drained, False for another try."""
        try:
            actor = await asyncio.to_thread(self._cluster.make, spec)
            self._actors[spec.instance] = actor
            if await self._follow(spec, actor):
                log.info("%s is drained", spec.instance)
                await self._end(self._kill, spec.instance, actor)
                return True
            log.info("%s: an agent of another configuration is replaced", spec.instance)
            await self._stop(spec.instance, actor)
        except self._cluster.actor_unavailable as error:
            log.error("%s: its actor is dead (%s); a new one starts", spec.instance, _message(error))
            await asyncio.to_thread(self._cluster.check)
        self._placed.discard(spec.instance)
        return False

    async def _follow(self, spec: AgentSpec, actor: Any) -> bool:
        """Wait until an agent has been drained; False at once if it has another configuration."""
        unavailable = False
        while True:
            try:
                config_hash, pid = await self._placed_at(spec, actor)
                unavailable = False
                if config_hash != spec.config_hash:
                    return False
                log.info("%s: agent runs under Ray, in process %d", spec.instance, pid)
                await _answer(actor.drained.remote())
                return True
            except self._cluster.actor_dead:
                raise
            except self._cluster.actor_unavailable as error:
                if not unavailable:
                    reason = _message(error)
                    log.warning("%s: agent is unavailable (%s); Ray restarts it", spec.instance, reason)
                unavailable = True
                await asyncio.to_thread(self._cluster.check)
                await asyncio.sleep(RETRY_S)

    async def _placed_at(self, spec: AgentSpec, actor: Any) -> tuple[str, int]:
        """Wait until an actor runs; report why it does not meanwhile."""
        about = asyncio.ensure_future(_answer(actor.about.remote()))
        logged = ""
        try:
            while not (await asyncio.wait({about}, timeout=PLACEMENT_CHECK_S))[0]:
                nodes = await asyncio.to_thread(self._cluster.nodes)
                if self._cluster.own and not nodes:
                    raise RayUnavailableError("the Ray that was started here has ended; start again")
                if (reason := waiting_reason(spec.resources, nodes)) != logged:
                    level = logging.INFO if fits(spec.resources, nodes) else logging.WARNING
                    log.log(level, "%s waits for a place: %s", spec.instance, reason)
                    logged = reason
                try:
                    await self._report_unplaced(InstanceId(spec.instance), reason, UNPLACED_TTL_S)
                except Exception as error:  # the next check reports it again
                    self._faults.note(log, error, "%s: not reported as without a place", spec.instance)
            config_hash, pid = about.result()
        finally:
            await end_tasks([about])
        self._placed.add(spec.instance)
        return config_hash, pid

    async def _end(self, end: Callable[[str, Any], Awaitable[None]], instance: str, actor: Any) -> None:
        """End an actor for the last time; a failure does not keep others from it."""
        try:
            await end(instance, actor)
        except Exception as error:
            self._faults.note(log, error, "%s: its actor did not end", instance)

    async def _stop(self, instance: str, actor: Any) -> None:
        """Drain an agent, stop it if that takes too long, and end its actor."""
        try:
            if instance in self._placed and not await self._drained(instance, actor):
                await self._stopped(instance, actor)
        except Exception:
            await self._kill(instance, actor)
            raise
        await self._kill(instance, actor)

    async def _stopped(self, instance: str, actor: Any) -> None:
        try:
            async with asyncio.timeout(STOP_MAX_S):
                await _answer(actor.stop.remote())
        except (TimeoutError, self._cluster.actor_unavailable) as error:
            log.warning("%s: did not stop (%s): killed", instance, _message(error))

    async def _drained(self, instance: str, actor: Any) -> bool:
        try:
            async with asyncio.timeout(DRAIN_MAX_S):
                if await self._ask_drain(InstanceId(instance)):
                    await _answer(actor.drained.remote())
                    return True
        except (TimeoutError, QlmError, self._cluster.actor_unavailable) as error:
            log.warning("%s: not drained: %s", instance, _message(error))
        return False

    async def _kill(self, instance: str, actor: Any) -> None:
        self._actors.pop(instance, None)
        try:
            async with asyncio.timeout(STOP_MAX_S):  # it blocks while the head is unreachable
                await asyncio.to_thread(self._cluster.kill, actor)
        except TimeoutError:
            log.warning("%s: its actor may go on: Ray does not answer", instance)


async def _answer(ref: Any) -> Any:
    """Wait for the result of a remote call, on the running loop."""
    return await asyncio.wrap_future(ref.future())


def _message(error: Exception) -> str:
    # The first line of an error of Ray says what happened, the last one why.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return "no answer"
    return cut("; ".join(dict.fromkeys((lines[0], lines[-1]))), ERROR_CHARACTERS_MAX)
