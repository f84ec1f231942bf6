"""What the compose file tells containers is what programs accept: they start, answer and are scraped."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import yaml

from support.compose import FOLDER, ROOT, Container, compose, containers
from support.monitoring_files import DASHBOARD
from support.ports import free_port
from support.process import ServerProcess
from support.prometheus import promtool
from support.qlm_process import QLM, awake_instances
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer

VARIABLES = {"QLM_PASSWORD": "secret-of-servers", "QLM_ADMIN_TOKEN": "secret-of-operators-0123456789"}
MODELS = {"mistral-7b", "llama-3-8b"}


@pytest.fixture(scope="module")
def running(
    rabbitmq: RabbitMQ, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Container]]:
    folder = tmp_path_factory.mktemp("compose")
    made = {each.name: each for each in containers(compose(VARIABLES), folder)}
    with ExitStack() as stack:
        for name, container in made.items():
            file = folder / f"{name}.yaml"
            file.write_text(yaml.safe_dump({**container.config, "deployment_name": "compose"}), "utf-8")
            servers = {"QLM_BROKER": rabbitmq.url, "QLM_STORE": redis_server.url}
            assert container.environment.keys() == servers.keys() | {"QLM_ADMIN_TOKEN"}
            process = ServerProcess(
                name,
                [str(QLM), *container.arguments, "--config", str(file)],
                env={**container.environment, **servers, "HOME": str(folder)},
                folder=folder,
            )
            stack.callback(process.kill)
            process.start()
            if name == "gateway":
                gateway = process
        gateway.wait_ready(lambda: serves(made["gateway"]), timeout_s=120)
        yield made


def serves(gateway: Container) -> bool:
    admin_url = f"http://127.0.0.1:{gateway.port('admin')}"
    try:
        return awake_instances(admin_url, VARIABLES["QLM_ADMIN_TOKEN"]) == 2
    except httpx.TransportError:
        return False


@pytest.mark.servers
def test_the_containers_answer_requests_for_each_model(running: dict[str, Container]) -> None:
    url = f"http://127.0.0.1:{running['gateway'].port('http')}"
    for model in sorted(MODELS):
        body = {"model": model, "prompt": "a story", "max_tokens": 8}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status().json()
        assert answer["usage"]["completion_tokens"] == 8


@pytest.mark.servers
def test_prometheus_scrapes_each_of_them(running: dict[str, Container]) -> None:
    (job,) = yaml.safe_load((FOLDER / "prometheus.yaml").read_text("utf-8"))["scrape_configs"]
    ((targets,),) = (each.values() for each in job["static_configs"])
    assert {target.partition(":")[0] for target in targets} == running.keys()
    given = yaml.safe_load((FOLDER / "qlm.yaml").read_text("utf-8"))
    sections = {given[section]["port"]: section for section in ("admin", "monitor")}
    for target in targets:
        name, port = target.split(":")
        url = f"http://127.0.0.1:{running[name].port(sections[int(port)])}/metrics"
        assert httpx.get(url, timeout=120).status_code == 401
        token = {"authorization": f"Bearer {VARIABLES['QLM_ADMIN_TOKEN']}"}
        assert "\nqlm_" in httpx.get(url, headers=token, timeout=120).raise_for_status().text


@pytest.mark.servers
def test_the_servers_get_what_the_others_log_in_with(redis_server: RedisServer, tmp_path: Path) -> None:
    services = compose(VARIABLES)["services"]
    given = services["gateway"]["environment"]
    user, password = (services["rabbitmq"]["environment"][f"RABBITMQ_DEFAULT_{x}"] for x in ("USER", "PASS"))
    assert given["QLM_BROKER"] == f"amqp://{user}:{password}@rabbitmq:5672/"
    program, *options = services["redis"]["command"]
    port = free_port()
    where = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(tmp_path)]
    server = ServerProcess(
        "redis", [program, *options, *where], env={"PATH": "/usr/bin:/bin"}, folder=tmp_path
    )
    server.start()
    try:
        url = given["QLM_STORE"].replace("redis:6379", f"127.0.0.1:{port}")
        client = redis.Redis.from_url(url)

        def answers() -> bool:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

        server.wait_ready(answers, timeout_s=30)
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("maxmemory") == {"maxmemory": str(2**30)}, "it refuses, and is not killed"
    finally:
        server.kill()


def test_only_loopback_is_published_and_all_mounted_files_are_there() -> None:
    made = compose(VARIABLES)
    for name, service in made["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        for each in service["volumes"]:
            source = each.split(":")[0]
            assert source in made["volumes"] or (FOLDER / source).is_file(), (name, source)
        assert "build" not in service or (ROOT / service["build"]["dockerfile"]).is_file()
        assert set(service.get("depends_on", ())) <= made["services"].keys()


@pytest.mark.servers
def test_prometheus_accepts_its_file(tmp_path: Path) -> None:
    text = (FOLDER / "prometheus.yaml").read_text("utf-8")
    text = text.replace("/etc/prometheus/alerts.yaml", str(ROOT / "monitoring/alerts.yaml"))
    token = tmp_path / "token"
    token.write_text("t", "utf-8")
    file = tmp_path / "prometheus.yaml"
    file.write_text(text.replace("/run/secrets/admin-token", str(token)), "utf-8")
    assert promtool("check", "config", str(file)) == ""


def test_grafana_finds_the_dashboard_and_the_source_of_its_data() -> None:
    made = compose(VARIABLES)["services"]["grafana"]
    mounted = dict(each.split(":")[:2][::-1] for each in made["volumes"])
    provider = _provisioned(mounted, "dashboards")["providers"][0]
    (dashboard,) = (path for path in mounted if path.startswith(provider["options"]["path"]))
    assert json.loads((FOLDER / mounted[dashboard]).read_text("utf-8")) == DASHBOARD
    (source,) = _provisioned(mounted, "datasources")["datasources"]
    variables = DASHBOARD["templating"]["list"]
    assert source["type"] in {each["query"] for each in variables if each["type"] == "datasource"}
    assert source["isDefault"] and source["url"] == "http://prometheus:9090"


def _provisioned(mounted: dict[str, str], what: str) -> dict[str, Any]:
    text = (FOLDER / mounted[f"/etc/grafana/provisioning/{what}/qlm.yaml"]).read_text("utf-8")
    made: dict[str, Any] = yaml.safe_load(text)
    return made
