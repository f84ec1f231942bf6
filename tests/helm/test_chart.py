"""The manifests of the chart: valid, limited, without rights, with a configuration that programs accept."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from qlm.cli.config.addresses import check_address
from qlm.cli.config.fleet import InstanceConfig
from qlm.cli.config.settings import Config, parse_config
from scripts import chart as chart_script
from support.chart import (
    CHART,
    EXAMPLES,
    NAMESPACE,
    PREFIX,
    Manifest,
    Pod,
    config_of,
    helm,
    of_kind,
    pods,
    rendered,
)

SHORT = [example.stem.removeprefix("values-") for example in EXAMPLES]
SCHEMAS = {
    file.stem: json.loads(file.read_text("utf-8")) for file in Path(__file__).parent.glob("schemas/*.json")
}
VERSIONS = ["1.29", ".".join(kubernetes_validate.latest_version().split(".")[:2])]
MORE = {
    "a10-a100": (
        'ingress={"enabled": true, "host": "llm.example.com", "tlsSecret": "tls"}',
        'filesVolume={"persistentVolumeClaim": {"claimName": "qlm-files"}}',
        'models[0].render={"reasons": true}',
        'models[0].adapters=[{"id": "poet", "path": "/models/poet"}]',
    ),
    "single-gpu": ('profiles={"mine.yaml": "version: 1"}',),
    "emulated": (
        "keda.enabled=true",
        "fleet[1].countMax=4",
        'monitoring={"serviceMonitor": true, "dashboard": true, "alerts": true, "labels": {"release": "p"}}',
        'networkPolicy.clientsFrom=[{"namespaceSelector": {}}]',
    ),
}
"""Settings beside each example, so that every template is rendered."""

EVERY_POD = [
    pytest.param(pod, id=f"{example}-{pod.name}")
    for example in SHORT
    for pod in pods(rendered(example, *MORE[example]))
]
OPEN_PORTS = {5672, 6379, 8000, 8001, 8090}
"""Of Services."""


def all_manifests() -> Iterator[Manifest]:
    for example in SHORT:
        yield from rendered(example, *MORE[example])


def test_the_examples_are_those_of_the_documents() -> None:
    assert SHORT == ["a10-a100", "emulated", "single-gpu"]


@pytest.mark.parametrize("example", EXAMPLES, ids=SHORT)
def test_the_linter_has_no_objection(example: Path) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, "-f", example)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("example", SHORT)
def test_manifests_are_what_kubernetes_knows(example: str, version: str) -> None:
    checked = 0
    for each in rendered(example, *MORE[example]):
        if each["kind"] not in SCHEMAS:
            kubernetes_validate.validate(each, version, strict=True)
            checked += 1
    assert checked > 15


@pytest.mark.parametrize("kind", SCHEMAS)
def test_custom_objects_have_the_published_shape(kind: str) -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMAS[kind])
    for each in all_manifests():
        if each["kind"] == kind:
            jsonschema.validate(each, SCHEMAS[kind])


@pytest.mark.parametrize("kind", sorted(set(SCHEMAS) - {"PrometheusRule"}))
def test_custom_objects_are_rendered(kind: str) -> None:
    assert any(each["kind"] == kind for each in all_manifests())


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pods_of_ray_are_what_kubernetes_knows(version: str) -> None:
    checked = [pod for pod in pods(rendered("a10-a100")) if "/" in pod.name]
    assert len(checked) == 4
    for pod in checked:
        spec = {
            "selector": {},
            "template": {"metadata": {"labels": dict(pod.labels)}, "spec": dict(pod.spec)},
        }
        made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec}
        kubernetes_validate.validate(made, version, strict=True)


def test_names_are_unique_and_in_the_namespace_of_the_release() -> None:
    for example in SHORT:
        named = [(each["kind"], each["metadata"]["name"]) for each in rendered(example, *MORE[example])]
        assert len(named) == len(set(named))
    assert {each["metadata"]["namespace"] for each in all_manifests()} == {NAMESPACE}


@pytest.mark.parametrize("pod", EVERY_POD)
def test_a_pod_has_limits_and_no_rights(pod: Pod) -> None:
    own, container = pod.spec["securityContext"], pod.container["securityContext"]
    for kind in ("requests", "limits"):
        assert {"cpu", "memory"} <= set(pod.container["resources"][kind])
    assert own["runAsNonRoot"] is True and own["runAsUser"] > 0
    assert own["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["readOnlyRootFilesystem"] is True
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert pod.spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod.spec)


@pytest.mark.parametrize("pod", EVERY_POD)
def test_a_pod_can_write_where_it_must(pod: Pod) -> None:
    volumes = {each["name"]: each for each in pod.spec["volumes"]}
    written = {
        mount["mountPath"]
        for mount in pod.container["volumeMounts"]
        if "emptyDir" in volumes.get(mount["name"], {}) or mount["name"] in pod.claims
    }
    assert "/tmp" in written
    if pod.own_image:
        assert "/var/lib/qlm" in written
    assert all(mount["name"] in {*volumes, *pod.claims} for mount in pod.container["volumeMounts"])


@pytest.mark.parametrize("pod", EVERY_POD)
def test_a_pod_is_probed(pod: Pod) -> None:
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = pod.container[probe].get("httpGet") or pod.container[probe]["tcpSocket"]
        assert asked["port"] in {each["name"] for each in pod.container["ports"]}


def test_no_engine_can_be_reached() -> None:
    for each in all_manifests():
        if each["kind"] == "Service":
            assert {port["port"] for port in each["spec"].get("ports", ())} <= OPEN_PORTS
    for pod in (param.values[0] for param in EVERY_POD):
        assert isinstance(pod, Pod)
        for port in pod.container.get("ports", ()):
            assert "hostPort" not in port
            assert port["containerPort"] in {*OPEN_PORTS, 6380, 8002}
    # Engines take ports of the kernel's range, on the loopback interface: no policy lets anyone come there.
    policies = [each for each in all_manifests() if each["kind"] == "NetworkPolicy"]
    allowed = [
        port.get("endPort", port["port"])
        for policy in policies
        for rule in policy["spec"].get("ingress", ())
        for port in rule["ports"]
    ]
    assert allowed and all(port in ("http", "grpc", "admin") or port < 32768 for port in allowed)


@pytest.mark.parametrize("example", SHORT)
def test_every_pod_is_closed_but_for_what_a_policy_names(example: str) -> None:
    manifests = rendered(example, *MORE[example])
    closed = of_kind(manifests, "NetworkPolicy")[f"{PREFIX}-none"]["spec"]
    assert closed["policyTypes"] == ["Ingress"] and "ingress" not in closed
    for pod in pods(manifests):
        assert closed["podSelector"]["matchLabels"].items() <= dict(pod.labels).items()


@pytest.mark.parametrize("example", SHORT)
def test_selectors_find_their_pods(example: str) -> None:
    manifests = rendered(example, *MORE[example])
    labels = [dict(pod.labels) for pod in pods(manifests)]
    for each in manifests:
        spec = each.get("spec", {})
        wanted = (
            spec.get("selector") if each["kind"] == "Service" else spec.get("selector", {}).get("matchLabels")
        )
        if wanted:
            assert any(wanted.items() <= each_pod.items() for each_pod in labels), each["metadata"]["name"]


@pytest.mark.parametrize("example", SHORT)
def test_the_configuration_is_one_that_the_programs_accept(example: str) -> None:
    raw = config_of(rendered(example, *MORE[example]))
    check_address("broker", raw["broker"], ("amqp",))
    config = parse_config(raw, "the chart")
    assert not config.embedded
    assert str(config.data_dir).startswith("/var/lib/qlm/")


def parsed(example: str, *settings: str) -> Config:
    return parse_config(config_of(rendered(example, *settings)), "the chart")


def test_the_cluster_of_the_paper_has_its_accelerators() -> None:
    config = parsed("a10-a100")
    assert sum(each.gpus for each in config.instances if each.accelerator == "A10") == 30
    extra = 4  # between count and countMax
    assert sum(each.gpus for each in config.instances if each.accelerator == "A100") == 50 + extra
    workers = {pod.name: pod for pod in pods(rendered("a10-a100"))}
    assert workers[f"{PREFIX}-ray/a10"].replicas == 30
    assert workers[f"{PREFIX}-ray/a100"].replicas == 40
    assert workers[f"{PREFIX}-ray-a100-extra"].replicas == 0
    assert workers[f"{PREFIX}-ray/a100x2"].container["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert workers[f"{PREFIX}-ray/a10"].spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A10"}


def test_models_go_where_they_fit_and_take_turns_in_being_the_first() -> None:
    models = {each.id: each.models for each in parsed("a10-a100").instances}
    assert models["a10-0"] == ("mistral-7b",)
    assert models["a100-0"] == ("mistral-7b", "vicuna-13b")
    assert models["a100-1"] == ("vicuna-13b", "mistral-7b")
    assert models["a100x2-0"] == ("llama-70b",)


def test_memory_holds_sleeping_models_and_kv_blocks() -> None:
    workers = {pod.name: pod for pod in pods(rendered("a10-a100"))}
    worker = workers[f"{PREFIX}-ray/a100"]
    assert worker.container["resources"]["limits"]["memory"] == "128Gi"  # 96 + 16 + 16
    (shm,) = [each["emptyDir"] for each in worker.spec["volumes"] if each["name"] == "shm"]
    assert shm == {"medium": "Memory", "sizeLimit": f"{(2 * 16 + 2) * 1024}Mi"}


def test_ray_places_by_what_worker_groups_offer() -> None:
    cluster = of_kind(rendered("a10-a100"), "RayCluster")[f"{PREFIX}-ray"]
    takes = parsed("a10-a100").ray.resources
    for group in cluster["spec"]["workerGroupSpecs"]:
        reported = group["rayStartParams"]["resources"]  # for a shell, and for KubeRay, which parses it
        offered: dict[str, Any] = json.loads(reported.strip("'"))
        assert shlex.split(reported) == [json.dumps(offered, separators=(",", ":"))]
        offered["GPU"] = int(group["rayStartParams"]["num-gpus"])
        assert offered in [dict(each) for each in takes.values()]
    assert cluster["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_the_acknowledgement_timeout_is_one_for_both_sides() -> None:
    manifests = rendered("emulated", "config.broker_ack_timeout_s=600")
    assert config_of(manifests)["broker_ack_timeout_s"] == 600
    conf = of_kind(manifests, "ConfigMap")[f"{PREFIX}-rabbitmq"]["data"]["rabbitmq.conf"]
    assert "consumer_timeout = 600000\n" in conf


def test_the_grpc_door_has_a_certificate_or_is_closed() -> None:
    listener = of_kind(rendered("emulated", 'grpc.tlsSecret="tls"'), "Deployment")[f"{PREFIX}-gateway"]
    spec = listener["spec"]["template"]["spec"]
    assert {"name": "grpc-tls", "secret": {"secretName": "tls", "defaultMode": 0o440}} in spec["volumes"]
    closed = rendered("emulated", "grpc.enabled=false")
    assert config_of(closed)["grpc"]["port"] == 0
    assert [port["name"] for port in of_kind(closed, "Service")[f"{PREFIX}-gateway"]["spec"]["ports"]] == [
        "http"
    ]


def test_large_numbers_stay_whole_numbers() -> None:
    assert parsed("single-gpu").vllm.kv_cache_bytes == 20_000_000_000


def test_passwords_are_in_the_secret_and_nowhere_else() -> None:
    manifests = rendered(
        "emulated",
        'secrets.rabbitmqPassword="hunter2hunter2"',
        'secrets.redisPassword="swordfish9"',
        'secrets.adminToken="ofTheOperators00"',
    )
    for each in manifests:
        said = json.dumps(each)
        found = any(secret in said for secret in ("hunter2hunter2", "swordfish9", "ofTheOperators00"))
        assert found == (each["kind"] == "Secret"), each["metadata"]["name"]


def test_an_existing_secret_is_used_in_place_of_one_of_ours() -> None:
    manifests = rendered("a10-a100")
    assert of_kind(manifests, "Secret") == {}
    for pod in pods(manifests):
        for each in pod.container.get("env", ()):
            if "valueFrom" in each:
                assert each["valueFrom"]["secretKeyRef"]["name"] == "qlm-servers"


def test_servers_elsewhere_are_not_run_here() -> None:
    settings = (
        "rabbitmq.enabled=false",
        "redis.enabled=false",
        'secrets={"broker": "amqp://u:p@mq/", "store": "rediss://u:p@cache:6380/1"}',
    )
    manifests = rendered("emulated", *settings)
    assert {pod.component for pod in pods(manifests)} == {"gateway", "controller", "agent"}
    secret = dict(of_kind(manifests, "Secret")[PREFIX]["stringData"])
    assert len(secret.pop("admin-token")) == 48
    assert secret == {"broker": "amqp://u:p@mq/", "store": "rediss://u:p@cache:6380/1"}


def test_keda_scales_what_is_there_between_count_and_most() -> None:
    for example, kind, least, most, others in (
        ("emulated", "StatefulSet", 2, 4, 0),
        ("a10-a100", "Deployment", 0, 4, 40),
    ):
        manifests = rendered(example, *MORE[example])
        ((name, scaled),) = of_kind(manifests, "ScaledObject").items()
        spec = scaled["spec"]
        assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": kind, "name": name}
        assert name in of_kind(manifests, kind)
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (least, most)
        query = spec["triggers"][0]["metadata"]["query"]
        reported = f'qlm_controller_recommended_instances{{namespace="{NAMESPACE}",accelerator="A100"}}'
        assert query.startswith(f"(max({reported}) - {others}) * on() ")


def test_the_cluster_of_the_paper_gives_each_kind_what_its_engines_need() -> None:
    reported = {(each.kind, each.gpus, each.kv_cache_bytes) for each in parsed("a10-a100").instances}
    assert reported == {("A10", 1, None), ("A100", 1, 36_000_000_000), ("A100x2", 2, None)}


def test_keda_asks_for_the_kind_by_which_instances_of_several_gpus_are_reported() -> None:
    manifests = rendered("a10-a100", "keda.enabled=true", "fleet[2].countMax=6")
    instances = config_of(manifests)["instances"]
    kind = next(InstanceConfig(**each).kind for each in instances if each["id"] == "a100x2-0")
    scaled = of_kind(manifests, "ScaledObject")[f"{PREFIX}-ray-a100x2-extra"]
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    assert f'accelerator="{kind}"}}) - 5)' in query
    assert 'accelerator="A100"' not in query


@pytest.mark.parametrize("path", chart_script.wanted(), ids=lambda path: path.name)
def test_what_is_kept_elsewhere_is_up_to_date(path: Path) -> None:
    assert path.read_text("utf-8") == chart_script.wanted()[path], "run: .venv/bin/python scripts/chart.py"


def test_dashboard_and_alerts_are_rendered_where_they_are_there() -> None:
    there = {path.name for path in chart_script.wanted()}
    manifests = rendered("emulated", *MORE["emulated"])
    assert (f"{PREFIX}-dashboard" in of_kind(manifests, "ConfigMap")) == ("grafana-dashboard.json" in there)
    assert (f"{PREFIX}-alerts" in of_kind(manifests, "PrometheusRule")) == ("alerts.yaml" in there)
