"""The few things we ask of Ray: connect or start, nodes, named actors."""

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from qlm.agents.guard import descendants, kill
from qlm.agents.ray.actor import AgentActor, Work
from qlm.agents.ray.placement import Node, Resources
from qlm.domain.errors import QlmError
from qlm.domain.shown import cut

log = logging.getLogger("qlm.agents")

ACTOR_PREFIX: Final = "qlm-agent/"
OBJECT_STORE_BYTES: Final = 80 * 1024**2
"""Of a Ray of our own: near the least that Ray takes; agents exchange nothing through it."""

KNOCK_MAX_S: Final = 10.0
"""How long the head of a cluster may take to accept a connection."""

STARTS_MAX: Final = 3
"""Ray gives its processes 30 s to start; on a busy machine that is not enough."""

CALLS_MAX: Final = 100
"""Calls to one actor at a time; each supervisor has two."""

_OWN_RAY: Final[Mapping[str, str]] = {
    "RAY_USAGE_STATS_ENABLED": "0",  # it does not phone home
    # Else, after a kill, two of its processes would stay for a minute.
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",
    "RAY_DEDUP_LOGS": "0",  # agents say alike things of different instances
    "RAY_COLOR_PREFIX": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # despite its name: one machine, all ports on loopback
}


class RayUnavailableError(QlmError):
    """Ray is not installed, does not answer, or did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """An agent to run as an actor.

    Attributes:
        instance: The instance it serves.
        resources: What it takes from the node it runs on.
        work: The agent itself.
        recipe: What it is made from, in short; another recipe is another agent.
    """

    instance: str
    resources: Resources
    work: Work
    recipe: str


class RayCluster:
    """A connection to Ray. Enter and leave it on the main thread: Ray handles signals meanwhile.

    Args:
        address: Of a node of a running cluster, or `auto` for the one of this machine; None starts a Ray of
            our own, which ends with us.
        namespace: Separates our actors from those of others.
        offers: What a Ray of our own offers beside what it finds.
    """

    def __init__(self, *, address: str | None, namespace: str, offers: Resources) -> None:
        self._address = address
        self._namespace = namespace
        self._offers = dict(offers)
        self._ray: Any = None

    @property
    def own(self) -> bool:
        """Whether this Ray is ours: nothing will ever join it."""
        return self._address is None

    def __enter__(self) -> Self:
        """Connect or start.

        Raises:
            RayUnavailableError: With what to do.
        """
        if self.own:
            os.environ.update({name: os.environ.get(name, value) for name, value in _OWN_RAY.items()})
        try:
            import ray
        except ImportError as error:
            raise RayUnavailableError(
                "--runtime ray needs the package ray, which cannot be imported "
                f"({error}); install the extra `ray` of qlm-serving"
            ) from error
        self._ray = ray
        self._knock()
        for tries_left in reversed(range(STARTS_MAX if self.own else 1)):
            try:
                ray.init(**self._arguments())
            except Exception as error:  # Ray raises just that when its processes are slow to start
                self._clear_away()
                why = cut(" ".join(str(error).split()))
                if not tries_left:
                    what = "Ray did not start" if self.own else f"no Ray cluster at {self._address!r}"
                    raise RayUnavailableError(f"{what}: {why}") from error
                log.warning("Ray did not start (%s): trying again", why)
            else:
                break
        return self

    def _knock(self) -> None:
        """Fail at once where nobody listens: Ray would try for minutes."""
        host, _, port = (self._address or "").rpartition(":")
        if not host:
            return
        try:
            socket.create_connection((host, int(port)), timeout=KNOCK_MAX_S).close()
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise RayUnavailableError(f"no Ray cluster at {self._address!r}: {why}") from error

    def _clear_away(self) -> None:
        """End what a failed start has left: nothing else was started by this process yet."""
        self._ray.shutdown()
        if self.own:
            for pid in descendants(os.getpid()):
                kill(pid)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect; a Ray of our own ends with all its processes."""
        self._ray.shutdown()

    def _arguments(self) -> dict[str, Any]:
        shared = {"namespace": self._namespace, "logging_level": logging.ERROR, "log_to_driver": True}
        if not self.own:
            return {"address": self._address, **shared}
        return {
            "address": "local",
            "num_cpus": 0,  # no workers in stock: agents take none of it
            "resources": self._offers,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
            **shared,
        }

    def check(self) -> None:
        """See whether the cluster still knows us; waits while its head is away.

        A head that starts again knows nothing of what was before, and what it does not know, it refuses. Our
        node and those of the agents end by themselves, but this process would ask in vain for ever.

        Raises:
            RayUnavailableError: The cluster that we joined is no more.
        """
        if self.own:
            return
        try:
            self._ray.util.list_named_actors()
        except self._ray.exceptions.AuthenticationError as error:
            raise RayUnavailableError(
                "the head of the Ray cluster has started anew and does not know us; start again"
            ) from error

    def nodes(self) -> list[Node]:
        """Return the live nodes.

        Raises:
            RayUnavailableError: The cluster that we joined is no more.
        """
        self.check()  # Ray itself would abort the process
        return [
            Node(node["NodeManagerAddress"], node["Resources"]) for node in self._ray.nodes() if node["Alive"]
        ]

    def instances(self) -> list[str]:
        """Return the instances that have an actor here, whoever made it."""
        return [
            name.removeprefix(ACTOR_PREFIX)
            for name in self._ray.util.list_named_actors()
            if name.startswith(ACTOR_PREFIX)
        ]

    def find(self, instance: str) -> Any:
        """Return the actor of an instance, or None."""
        try:
            return self._ray.get_actor(ACTOR_PREFIX + instance)
        except ValueError:
            return None

    def make(self, spec: AgentSpec) -> Any:
        """Return the actor of an instance, a new one if there is none; Ray places it when it can."""
        wanted = dict(spec.resources)
        actor = self._ray.remote(AgentActor).options(
            name=ACTOR_PREFIX + spec.instance,
            get_if_exists=True,
            lifetime=None if self.own else "detached",
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=CALLS_MAX,
            num_cpus=wanted.pop("CPU", 0),
            num_gpus=wanted.pop("GPU", 0),
            resources=wanted,
        )
        return actor.remote(spec.work, spec.recipe)

    def kill(self, actor: Any) -> None:
        """End an actor's process for good."""
        self._ray.kill(actor, no_restart=True)

    @property
    def gone(self) -> type[Exception]:
        """What a call raises when its actor is dead for good."""
        kind: type[Exception] = self._ray.exceptions.ActorDiedError
        return kind

    @property
    def away(self) -> type[Exception]:
        """What a call raises while Ray starts its actor again, or does not answer itself."""
        kind: type[Exception] = self._ray.exceptions.RayError
        return kind
