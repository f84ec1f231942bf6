"""What the chart renders for Ray is what Ray accepts: nodes as KubeRay starts them, and agents on them."""

import contextlib
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from support.chart import rendered
from support.chart_processes import Cluster, Place
from support.chart_servers import container_environment, need_servers, start, start_rabbitmq, start_redis
from support.kuberay import pods_run
from support.process import ServerProcess
from support.ray_agents import READY_S, below, need_ray, node_of, placed, wait_gone

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

SETTINGS = (
    'agents.runtime="ray"',
    'fleet=[{"name": "a10", "accelerator": "A10", "count": 1, "countMax": 2, "models": ["mistral-7b"]},'
    ' {"name": "a100", "accelerator": "A100", "count": 1, "models": ["vicuna-13b"]}]',
    "keda.enabled=true",
    "monitoring.serviceMonitor=true",
    "gateway.replicas=1",
    "controller.replicas=1",
    'logFormat="text"',
    'config={"emulate": {"time_scale": 0.1}}',
)
HEAD, A10, A100 = "r-qlm-ray/head", "r-qlm-ray/a10", "r-qlm-ray/a100"
EXTRA, AGENTS, GATEWAY = "r-qlm-ray-a10-extra", "r-qlm-agents", "r-qlm-gateway"
MODELS = {"mistral-7b", "vicuna-13b"}


@dataclass
class Running:
    """What was started, by the name of the pod."""

    places: dict[str, Place]
    processes: dict[str, ServerProcess]
    stack: ExitStack

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.places[GATEWAY].port}"

    @property
    def agents(self) -> dict[str, int]:
        return placed(self.processes[AGENTS].log_file.read_text())

    def start(self, *names: str) -> None:
        for name in names:
            self.processes[name] = start(self.places[name], self.stack)

    def wait(self, holds: Callable[[], Any]) -> None:
        """Wait until something holds, with the log of what places agents at hand."""
        self.processes[AGENTS].wait_ready(holds, timeout_s=READY_S)

    def awake(self) -> set[str]:
        with contextlib.suppress(httpx.TransportError):
            gateway = self.places[GATEWAY]
            url = f"http://127.0.0.1:{gateway.listening['admin']}/admin/v1/instances"
            known = {"authorization": f"Bearer {gateway.environment['QLM_ADMIN_TOKEN']}"}
            answer = httpx.get(url, headers=known, timeout=120)
            if answer.status_code == 200:
                return {each["id"] for each in answer.json()["instances"] if each["active_model"]}
        return set()

    def ask(self, model: str) -> None:
        body = {"model": model, "prompt": "a story", "max_tokens": 20, "ignore_eos": True}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=120).raise_for_status().json()
        assert answer["usage"]["completion_tokens"] == 20

    def kill(self, name: str) -> None:
        """Kill a container, and wait until what it has left has ended too."""
        running = below(self.processes[name].pid)
        self.processes[name].kill()
        wait_gone(running)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    need_servers()
    manifests = rendered("emulated", *SETTINGS)
    run = {pod.name: pod for pod in pods_run(manifests)}
    with need_ray() as folder, ExitStack() as stack:
        cluster = Cluster(manifests, folder)
        redis, rabbitmq = (cluster.place(run.pop(f"r-qlm-{name}"), 0) for name in ("redis", "rabbitmq"))
        made = Running({name: cluster.place(pod, 0) for name, pod in run.items()}, {}, stack)
        try:
            made.start(HEAD)
            start_redis(redis, stack)
            start_rabbitmq(rabbitmq, stack)
            wait_retry_after(made, A10)
            made.start(*(pod.name for pod in run.values() if pod.replicas and pod.name != HEAD))
            made.wait(lambda: kinds(made.awake()) == ["a10", "a100"])
            yield made
        finally:
            end_nodes(made)


def end_nodes(running: Running) -> None:
    """End all nodes at once, and what is left below them."""
    left = set().union(*(below(each.pid) for each in running.processes.values() if each.alive))
    for process in running.processes.values():
        process.kill()
    wait_gone(left)


def wait_retry_after(running: Running, name: str) -> None:
    """Run the container in which a worker waits for the head."""
    place = running.places[name]
    (waits,) = place.pod.spec["initContainers"]
    reported = place.words([*waits["command"], *waits["args"]])
    env = container_environment(place)
    subprocess.run(reported, env=env, cwd=place.home, check=True, timeout=READY_S, capture_output=True)


def kinds(instances: Iterable[str]) -> list[str]:
    """Kinds of some instances: of equal ones, Ray may place any first."""
    return sorted(each.partition("-")[0] for each in instances)


def on_nodes_of_their_kind(running: Running) -> None:
    """Check that each instance that serves has its agent on a node that offers its kind."""
    agents = running.agents
    for instance in running.awake():
        (kind,) = (kind for kind in ("A10", "A100") if f"qlm-{kind}," in node_of(agents[instance]))
        assert kind.lower() == instance.partition("-")[0]


def test_every_container_runs_and_agents_are_on_nodes_of_their_kind(running: Running) -> None:
    assert set(running.processes) == {HEAD, A10, A100, AGENTS, GATEWAY, "r-qlm-controller"}
    ended = {name: each.log_tail() for name, each in running.processes.items() if not each.alive}
    assert ended == {}
    on_nodes_of_their_kind(running)
    log = running.processes[AGENTS].log_file.read_text()
    assert "\x1b" not in log and "autoscaler" not in log, "a log for a collector, of what is QLM's"


def test_requests_of_every_model_are_answered(running: Running) -> None:
    for model in sorted(MODELS):
        running.ask(model)


def test_probes_ask_what_is_there(running: Running) -> None:
    asked = set()
    for name in (HEAD, A10, A100, AGENTS):
        place = running.places[name]
        for key, probe in place.pod.container.items():
            if key.endswith("Probe"):
                ((how, what),) = ((how, probe[how]) for how in ("tcpSocket", "httpGet") if how in probe)
                port = place.listening[what["port"]]
                if how == "httpGet":
                    httpx.get(f"http://127.0.0.1:{port}{what['path']}", timeout=120).raise_for_status()
                else:
                    socket.create_connection(("127.0.0.1", port), timeout=10).close()
                asked.add((name, key))
    assert len(asked) == 4 * 3


def test_without_the_token_nobody_joins(running: Running) -> None:
    place = running.places[EXTRA]
    knock = place.words(["ray", "health-check", "--address", f"{HEAD.replace('/', '-')}-svc:6379"])
    for token, command in (("", place.command), ("another" * 6, knock)):
        env = container_environment(place) | {"RAY_AUTH_TOKEN": token}
        done = subprocess.run(
            command, env=env, cwd=place.home, capture_output=True, text=True, timeout=READY_S, check=False
        )
        assert done.returncode != 0
        assert "AuthenticationError" in done.stderr
    assert kinds(running.awake()) == ["a10", "a100"]


def test_a_node_that_is_added_takes_the_instance_that_waited(running: Running) -> None:
    running.start(EXTRA)
    running.wait(lambda: kinds(running.awake()) == ["a10", "a10", "a100"])
    on_nodes_of_their_kind(running)


def test_an_instance_whose_node_is_killed_comes_up_with_the_next_one_of_its_kind(running: Running) -> None:
    before = running.agents["a100-0"]
    running.kill(A100)
    running.ask("mistral-7b")
    running.start(A100)
    running.wait(lambda: running.agents["a100-0"] != before)
    running.wait(lambda: kinds(running.awake()) == ["a10", "a10", "a100"])
    on_nodes_of_their_kind(running)
    running.ask("vicuna-13b")


def test_all_nodes_may_be_replaced_at_once_and_what_places_agents_starts_again(running: Running) -> None:
    """As KubeRay does on an upgrade: the pod of the supervisor is none of its own."""
    before = running.agents
    for name in (HEAD, A10, EXTRA, A100):
        running.kill(name)
    running.start(HEAD)
    wait_retry_after(running, A10)
    running.start(A10, A100)
    with pytest.raises(RuntimeError, match="has restarted"):
        running.wait(lambda: False)
    assert running.processes[AGENTS].exit_code == 1
    running.kill(AGENTS)
    running.start(AGENTS)
    running.wait(lambda: kinds(dict(running.agents.items() - before.items())) == ["a10", "a100"])
    for model in sorted(MODELS):
        running.ask(model)
