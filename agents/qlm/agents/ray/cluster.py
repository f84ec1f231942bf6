"""Client of a Ray cluster: connect to one or start one, list nodes, find and create named actors."""

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Thread
from types import TracebackType
from typing import Any, Final, Self

from qlm.agents.core.node_placement import Node, Resources
from qlm.agents.engines.guard import descendants, kill
from qlm.agents.ray.actor import AgentActor, Work
from qlm.domain.errors import QlmError, extra_hint
from qlm.domain.shown import cut

log = logging.getLogger("qlm.agents")

ACTOR_PREFIX: Final = "qlm-agent/"
OBJECT_STORE_BYTES: Final = 80 * 1024**2
"""Object store of a Ray started here: near Ray's minimum, since agents exchange nothing through it."""

CONNECT_MAX_S: Final = 10.0
"""Limit for the head of a cluster to accept a connection."""

DISCONNECT_MAX_S: Final = 10.0
"""Limit for the head of a cluster to let this process go; a process that ends is gone anyway."""

STARTS_MAX: Final = 3
"""Attempts to start Ray: the 30 s that it gives its processes are too short on a busy machine."""

CALLS_MAX: Final = 100
"""Concurrent calls to one actor; each supervisor makes two."""

_OWN_RAY: Final[Mapping[str, str]] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Without it, two of its processes stay for a minute after a kill.
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",
    "RAY_DEDUP_LOGS": "0",  # agents of different instances log similar lines
    "RAY_COLOR_PREFIX": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # despite its name: one machine, all ports on loopback
}


class RayUnavailableError(QlmError):
    """Ray is not installed, does not answer, or did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """An agent to run as an actor.

    Attributes:
        resources: What it requires of its node.
        work: Runs the agent.
        config_hash: Hash of the configuration that the agent reads; another hash requires another actor.
    """

    instance: str
    resources: Resources
    work: Work
    config_hash: str


class RayCluster:
    """Connection to Ray, a context manager. Use it on the main thread: Ray installs signal handlers.

    Args:
        address: Of a node of a running cluster, or `auto` for the cluster of this machine; None starts a Ray
            that ends with this process.
        namespace: Ray namespace of the actors.
        offers: Resources that a Ray started here declares beside those that it finds.
    """

    def __init__(self, *, address: str | None, namespace: str, offers: Resources) -> None:
        self._address = address
        self._namespace = namespace
        self._offers = dict(offers)
        self._ray: Any = None

    @property
    def own(self) -> bool:
        """True if this process starts Ray: no other node will ever join it."""
        return self._address is None

    def __enter__(self) -> Self:
        """Connect or start.

        Raises:
            RayUnavailableError: It is not installed, cannot be reached, or does not start.
        """
        if self.own:
            os.environ.update({name: os.environ.get(name, value) for name, value in _OWN_RAY.items()})
        try:
            import ray
        except ImportError as error:
            raise RayUnavailableError(
                "--runtime ray needs the package ray, which cannot be imported "
                f"({error}): {extra_hint('ray')}"
            ) from error
        self._ray = ray
        self._check_reachable()
        for tries_left in reversed(range(STARTS_MAX if self.own else 1)):
            try:
                ray.init(**self._arguments())
            except Exception as error:  # Ray raises plain Exception when its processes start slowly
                self._clean_up_failed_start()
                why = cut(" ".join(str(error).split()))
                if not tries_left:
                    what = "Ray did not start" if self.own else f"no Ray cluster at {self._address!r}"
                    raise RayUnavailableError(f"{what}: {why}") from error
                log.warning("Ray did not start (%s): trying again", why)
            else:
                break
        return self

    def _check_reachable(self) -> None:
        # Fail at once if nothing listens there: Ray would retry for minutes.
        host, _, port = (self._address or "").rpartition(":")
        if not host:
            return
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_MAX_S).close()
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise RayUnavailableError(f"no Ray cluster at {self._address!r}: {why}") from error

    def _clean_up_failed_start(self) -> None:
        # All descendants are Ray's: this process has not started anything else yet.
        self._ray.shutdown()
        if self.own:
            for pid in descendants(os.getpid()):
                kill(pid)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect; a Ray started here ends with all its processes."""
        if self.own:
            self._ray.shutdown()
            return
        # It blocks while the head is unreachable.
        leaving = Thread(target=self._ray.shutdown, name="ray-shutdown", daemon=True)
        leaving.start()
        leaving.join(DISCONNECT_MAX_S)
        if leaving.is_alive():
            log.warning("the head of the Ray cluster does not answer; this process leaves it all the same")

    def _arguments(self) -> dict[str, Any]:
        shared = {"namespace": self._namespace, "logging_level": logging.ERROR, "log_to_driver": True}
        if not self.own:
            return {"address": self._address, **shared}
        return {
            "address": "local",
            "num_cpus": 0,  # no prestarted workers: agents require no CPU resource
            "resources": self._offers,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
            **shared,
        }

    def check(self) -> None:
        """Check that the cluster still accepts this process; block while its head is unreachable.

        Raises:
            RayUnavailableError: The head has restarted.
        """
        if self.own:
            return
        # A restarted head has lost its state and refuses all processes from before. The nodes end by
        # themselves, but this process would retry for ever.
        try:
            self._ray.util.list_named_actors()
        except self._ray.exceptions.AuthenticationError as error:
            raise RayUnavailableError(
                "the head of the Ray cluster has restarted and refuses this process; start it again"
            ) from error

    def nodes(self) -> list[Node]:
        """Return the live nodes.

        Raises:
            RayUnavailableError: The head has restarted.
        """
        self.check()  # after a restart of the head, Ray would abort this process
        return [
            Node(node["NodeManagerAddress"], node["Resources"]) for node in self._ray.nodes() if node["Alive"]
        ]

    def instances(self) -> list[str]:
        """Return the instances that have an actor here, by whichever supervisor."""
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
        """Return the actor of an instance, created if there is none; Ray places it when it can."""
        required = dict(spec.resources)
        actor = self._ray.remote(AgentActor).options(
            name=ACTOR_PREFIX + spec.instance,
            get_if_exists=True,
            lifetime=None if self.own else "detached",
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=CALLS_MAX,
            num_cpus=required.pop("CPU", 0),
            num_gpus=required.pop("GPU", 0),
            resources=required,
        )
        return actor.remote(spec.work, spec.config_hash)

    def kill(self, actor: Any) -> None:
        """Kill an actor; Ray does not restart it."""
        self._ray.kill(actor, no_restart=True)

    @property
    def actor_dead(self) -> type[Exception]:
        """Exception of a call whose actor is dead and will not be restarted."""
        kind: type[Exception] = self._ray.exceptions.ActorDiedError
        return kind

    @property
    def actor_unavailable(self) -> type[Exception]:
        """Exception of a call while Ray restarts its actor or does not answer; includes `actor_dead`."""
        kind: type[Exception] = self._ray.exceptions.RayError
        return kind
