"""What the chart renders is what the programs accept: its processes are started as told, and answer."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import httpx
import pytest

from support.chart import ROOT, pods, rendered
from support.chart_processes import Cluster, Place
from support.chart_servers import PATH, READY_S, need_servers, start, start_rabbitmq, start_redis
from support.process import ServerProcess
from support.qlm_process import awake_instances

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

MODELS = {"mistral-7b", "vicuna-13b"}
FAST = 'config={"emulate": {"time_scale": 0.1}}'


@dataclass
class Running:
    """What was started.

    Attributes:
        places: Of all pods but those of RabbitMQ and Redis, by name and number.
        processes: Their processes.
    """

    places: dict[str, Place] = field(default_factory=dict)
    processes: dict[str, ServerProcess] = field(default_factory=dict)

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.places[name].port}"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    need_servers()
    folder = tmp_path_factory.mktemp("chart")
    manifests = rendered("emulated", FAST)
    cluster = Cluster(manifests, folder)
    by_component = {pod.component: pod for pod in pods(manifests)}
    made = Running()
    with ExitStack() as stack:
        start_redis(cluster.place(by_component["redis"], 0), stack)
        start_rabbitmq(cluster.place(by_component["rabbitmq"], 0), stack)
        for pod in pods(manifests):
            for index in range(pod.replicas if pod.own_image else 0):
                place = cluster.place(pod, index)
                made.places[f"{pod.name}-{index}"] = place
                made.processes[f"{pod.name}-{index}"] = start(place, stack)
        gateway = made.processes["r-qlm-gateway-0"]
        gateway.wait_ready(lambda: answers(made.places["r-qlm-gateway-0"]), timeout_s=READY_S)
        yield made


def answers(gateway: Place) -> bool:
    admin_url = f"http://127.0.0.1:{gateway.listening['admin']}"
    try:
        ready = httpx.get(f"http://127.0.0.1:{gateway.port}/readyz", timeout=120).status_code == 200
        return ready and awake_instances(admin_url, gateway.environment["QLM_ADMIN_TOKEN"]) == 3
    except httpx.TransportError:
        return False


def test_every_container_of_the_chart_runs(running: Running) -> None:
    assert sorted(running.processes) == [
        *(f"r-qlm-a10-{n}" for n in range(1)),
        *(f"r-qlm-a100-{n}" for n in range(2)),
        *(f"r-qlm-controller-{n}" for n in range(2)),
        *(f"r-qlm-gateway-{n}" for n in range(2)),
    ]
    ended = {name: each.log_tail() for name, each in running.processes.items() if not each.alive}
    assert ended == {}


def test_requests_go_through_every_gateway_for_every_model(running: Running) -> None:
    for gateway in ("r-qlm-gateway-0", "r-qlm-gateway-1"):
        url = running.url(gateway)
        listed = httpx.get(f"{url}/v1/models", timeout=120).raise_for_status().json()["data"]
        assert {each["id"] for each in listed} == MODELS
        for model in sorted(MODELS):
            body = {"model": model, "prompt": "a story", "max_tokens": 20, "ignore_eos": True}
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status().json()
            assert answer["usage"]["completion_tokens"] == 20


def test_probes_ask_what_is_there(running: Running) -> None:
    for name, place in running.places.items():
        probes = [each["httpGet"] for key, each in place.pod.container.items() if key.endswith("Probe")]
        for asked in probes:
            url = f"http://127.0.0.1:{place.listening[asked['port']]}{asked['path']}"
            assert httpx.get(url, timeout=120).status_code == 200, (name, url)


def test_the_example_client_gets_over_grpc_what_http_answers(running: Running) -> None:
    place = running.places["r-qlm-gateway-1"]
    reported = [
        str(ROOT / "examples/grpc_client.py"),
        "mistral-7b",
        "a story",
        f"127.0.0.1:{place.listening['grpc']}",
    ]
    done = subprocess.run(
        [sys.executable, *reported], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    body = {"model": "mistral-7b", "prompt": "a story", "max_tokens": 100}
    url = running.url("r-qlm-gateway-0")
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status().json()
    assert done.stdout.removesuffix("\n") == answer["choices"][0]["text"]


def test_every_process_tells_its_metrics(running: Running) -> None:
    for name, place in running.places.items():
        listener = "admin" if place.pod.component == "gateway" else "monitor"
        url = f"http://127.0.0.1:{place.listening[listener]}/metrics"
        known = {"authorization": f"Bearer {place.environment['QLM_ADMIN_TOKEN']}"}
        assert "qlm_broker_up 1.0" in httpx.get(url, headers=known, timeout=120).raise_for_status().text, name
        assert httpx.get(url, timeout=120).status_code == 401, name


def test_an_agent_that_is_to_stop_is_drained_and_ends_by_itself(running: Running) -> None:
    place, process = running.places["r-qlm-a100-1"], running.processes["r-qlm-a100-1"]
    hook = place.words(place.pod.container["lifecycle"]["preStop"]["exec"]["command"])
    env = {"PATH": PATH, **place.environment}
    stopping = ServerProcess("hook", hook, env=env, folder=place.home)
    stopping.start()
    try:
        process.wait_ready(lambda: False, timeout_s=60)
    except RuntimeError:
        assert process.exit_code == 0, process.log_tail()
    finally:
        stopping.kill()  # in a pod it ends with the agent
    assert stopping.log_file.read_text().startswith("a100-1 is draining")
