"""Who may come to the parts that the chart runs, and what an upgrade leaves alone."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from support.chart import PREFIX, Manifest, Pod, config_of, of_kind, pods, rendered

INGRESS = 'ingress={"enabled": true, "host": "llm.example.com"}'


def test_who_is_named_as_client_is_the_only_one() -> None:
    client, prometheus = (
        {"podSelector": {"matchLabels": {"app": "chat"}}},
        {"podSelector": {"matchLabels": {"app": "p"}}},
    )
    named = f"networkPolicy.clientsFrom={json.dumps([client])}"
    for watchers in ([], [prometheus]):
        manifests = rendered("emulated", named, f"networkPolicy.prometheusFrom={json.dumps(watchers)}")
        policies = of_kind(manifests, "NetworkPolicy")
        listeners, inside = policies[f"{PREFIX}-gateway"]["spec"]["ingress"]
        assert listeners == {"ports": [{"port": "http"}, {"port": "grpc"}], "from": [client]}
        assert inside["ports"] == [{"port": "admin"}]
        assert ("from" in inside) == bool(watchers)
        if watchers:
            (agents, *others) = inside["from"]
            assert agents["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "agent"
            assert others == watchers
        (monitors,) = policies[f"{PREFIX}-monitor"]["spec"]["ingress"]
        assert monitors.get("from", []) == watchers


def test_the_queue_restarts_with_its_configuration_and_not_with_the_version() -> None:
    def made(manifests: tuple[Manifest, ...]) -> dict[str, Any]:
        sets = of_kind(manifests, "StatefulSet")
        return {name: sets[f"{PREFIX}-{name}"]["spec"]["template"] for name in ("rabbitmq", "redis")}

    now = made(rendered("emulated"))
    longer = made(rendered("emulated", "config.broker_ack_timeout_s=7200"))
    assert longer["rabbitmq"]["metadata"]["annotations"] != now["rabbitmq"]["metadata"]["annotations"]
    assert longer["redis"] == now["redis"]
    for template in now.values():
        assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(template["metadata"]["labels"])


def test_passwords_stay_with_the_volumes_that_know_them() -> None:
    (secret,) = of_kind(rendered("emulated"), "Secret").values()
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize(
    ("example", "password", "keys"),
    [
        ("a10-a100", "redisPassword", {"redis-password", "store"}),
        ("a10-a100", "adminToken", {"admin-token"}),
        ("a10-a100", "rayToken", {"auth_token"}),
        ("emulated", "redisPassword", {"redis-password", "store"}),
        ("emulated", "adminToken", {"admin-token"}),
    ],
)
def test_all_who_have_a_password_start_anew_with_another_one(
    example: str, password: str, keys: set[str]
) -> None:
    def annotations(text: str) -> dict[str, Mapping[str, str]]:
        manifests = rendered(example, 'secrets.existing=""', f"secrets.{password}={json.dumps(text)}")
        return {pod.name: pod.annotations for pod in pods(manifests) if keys & _secrets_in(pod)}

    one, other = annotations("one" * 10), annotations("other" * 10)
    assert one
    assert [name for name in one if one[name] == other[name]] == []


def _secrets_in(pod: Pod) -> set[str]:
    """Keys of the Secret that are in the environment of a pod."""
    sources = (each.get("valueFrom", {}) for each in pod.container["env"])
    return {each["secretKeyRef"]["key"] for each in sources if "secretKeyRef" in each}


def test_administration_stays_inside() -> None:
    (route,) = of_kind(rendered("a10-a100"), "GRPCRoute").values()
    calls = {
        (match["method"]["service"], match["method"].get("method"))
        for rule in route["spec"]["rules"]
        for match in rule["matches"]
    }
    outside = {("qlm.v1.Qlm", call) for call in ("Generate", "Resume", "Get", "Cancel")}
    assert calls == {*outside, ("grpc.health.v1.Health", None)}
    ways = of_kind(rendered("a10-a100", INGRESS), "Ingress")[f"{PREFIX}-gateway"]["spec"]["rules"]
    public = {"/v1", "/health", "/healthz", "/readyz"}
    assert {path["path"] for rule in ways for path in rule["http"]["paths"]} == public


@pytest.mark.parametrize("settings", [(), ('gateway.service.type="LoadBalancer"',)])
def test_operators_have_a_service_of_their_own_inside(settings: tuple[str, ...]) -> None:
    manifests = rendered("emulated", *settings)
    services = of_kind(manifests, "Service")
    admin = services[f"{PREFIX}-gateway-admin"]["spec"]
    assert admin["type"] == "ClusterIP"
    assert [(port["name"], port["port"]) for port in admin["ports"]] == [("admin", 8090)]
    public = services[f"{PREFIX}-gateway"]["spec"]
    assert [port["name"] for port in public["ports"]] == ["http", "grpc"]
    assert admin["selector"] == public["selector"]
    config = config_of(manifests)
    assert config["admin"] == {"host": "0.0.0.0", "port": 8090}


@pytest.mark.parametrize("example", ["a10-a100", "emulated"])
def test_whoever_serves_metrics_has_the_token_that_prometheus_shows(example: str) -> None:
    manifests = rendered(example, "monitoring.serviceMonitor=true")
    name = "qlm-servers" if example == "a10-a100" else PREFIX
    secret = {"name": name, "key": "admin-token"}
    for kind, endpoints in (("ServiceMonitor", "endpoints"), ("PodMonitor", "podMetricsEndpoints")):
        (monitor,) = of_kind(manifests, kind).values()
        (endpoint,) = monitor["spec"][endpoints]
        assert endpoint["authorization"] == {"type": "Bearer", "credentials": secret}
        assert endpoint["port"] == ("admin" if kind == "ServiceMonitor" else "monitor")
    for pod in pods(manifests):
        if pod.own_image and pod.container.get("command", [""])[0] in ("qlm", "sh"):
            given = {each["name"]: each.get("valueFrom") for each in pod.container["env"]}
            assert given["QLM_ADMIN_TOKEN"] == {"secretKeyRef": secret}, pod.name


def test_liveness_is_asked_where_clients_cannot_be_in_the_way() -> None:
    (gateway,) = (pod for pod in pods(rendered("emulated")) if pod.component == "gateway")
    asked = {
        name: gateway.container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")
    }
    assert asked == {
        "startup": {"path": "/healthz", "port": "admin"},
        "liveness": {"path": "/healthz", "port": "admin"},
        "readiness": {"path": "/readyz", "port": "http"},
    }


def test_an_agent_that_stops_asks_the_listener_of_operators() -> None:
    (agent, *_) = (pod for pod in pods(rendered("emulated")) if pod.component == "agent")
    hook = agent.container["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert f"--url http://{PREFIX}-gateway-admin:8090 " in hook


def test_of_each_kind_one_instance_at_a_time_is_taken_away_with_its_node() -> None:
    for example in ("a10-a100", "emulated"):
        manifests = rendered(example)
        lasting = [
            pod
            for pod in pods(manifests)
            if "qlm.io/group" in pod.labels and "qlm.io/extra" not in pod.labels
        ]
        budgets = of_kind(manifests, "PodDisruptionBudget")
        budgets = {name: each for name, each in budgets.items() if not name.endswith("-extra")}
        several = [pod for pod in lasting if pod.replicas > 1]
        assert len(several) == len(budgets) - 2
        for pod in several:
            spec = budgets[f"{PREFIX}-{pod.labels['qlm.io/group']}"]["spec"]
            limit = {"minAvailable": pod.replicas - 1} if example == "a10-a100" else {"maxUnavailable": 1}
            assert spec.items() >= limit.items()
            assert spec["selector"]["matchLabels"].items() <= dict(pod.labels).items()
    fewer = of_kind(rendered("emulated", "agents.maxUnavailable=2"), "PodDisruptionBudget")
    assert set(fewer) == {f"{PREFIX}-gateway", f"{PREFIX}-controller"}


@pytest.mark.parametrize("runtime", ["ray", "process"])
def test_instances_that_are_added_do_not_let_more_be_taken_away(runtime: str) -> None:
    group = {"name": "a100", "accelerator": "A100", "count": 3, "countMax": 8}
    settings = ("keda.enabled=true", f"agents.runtime={json.dumps(runtime)}", f"fleet={json.dumps([group])}")
    manifests = rendered("emulated", *settings)
    agents = [pod for pod in pods(manifests) if "qlm.io/group" in pod.labels]
    budgets = [
        each["spec"]
        for name, each in of_kind(manifests, "PodDisruptionBudget").items()
        if name in (f"{PREFIX}-a100", f"{PREFIX}-ray-a100-extra")
    ]
    assert len(agents) == len(budgets) == (2 if runtime == "ray" else 1)
    for pod in agents:
        (budget,) = (each for each in budgets if _selects(each["selector"], pod.labels))
        of_cluster = runtime == "ray" and "qlm.io/extra" not in pod.labels
        assert budget.items() >= ({"minAvailable": 2} if of_cluster else {"maxUnavailable": 1}).items()


def _selects(selector: dict[str, Any], labels: Mapping[str, str]) -> bool:
    absent = [each["key"] for each in selector.get("matchExpressions", ())]
    return selector["matchLabels"].items() <= labels.items() and not set(absent) & set(labels)


@pytest.mark.parametrize("example", ["a10-a100", "emulated"])
def test_secrets_reach_the_environment_of_programs_and_never_their_configuration(example: str) -> None:
    source = {"secretRef": {"name": "hugging-face"}}
    manifests = rendered(example, f"envFrom={json.dumps([source])}")
    own = [pod for pod in pods(manifests) if not pod.name.endswith(("-redis", "-rabbitmq", "/head"))]
    assert len(own) >= 4
    for pod in own:
        assert [each.get("envFrom") for each in pod.spec["containers"]] == [[source]], pod.name


@pytest.mark.parametrize("example", ["a10-a100", "emulated"])
@pytest.mark.parametrize("kind", ["configMap", "secret"])
def test_a_private_authority_of_the_servers_reaches_all_who_call_them(example: str, kind: str) -> None:
    ca = {kind: "company", "key": "root.pem"}
    addresses = {"broker": "amqps://u:p@mq/", "store": "rediss://u:p@cache/", "ca": ca, "existing": ""}
    off = ("rabbitmq.enabled=false", "redis.enabled=false")
    manifests = rendered(example, *off, f"secrets={json.dumps(addresses)}")
    environment = of_kind(manifests, "ConfigMap")[f"{PREFIX}-ca"]["data"]
    own = [pod for pod in pods(manifests) if not pod.name.endswith("/head")]
    assert len(own) >= 4
    for pod in own:
        assert pod.container["envFrom"] == [{"configMapRef": {"name": f"{PREFIX}-ca"}}]
        (mount,) = (each for each in pod.container["volumeMounts"] if each["name"] == "ca")
        (volume,) = (each for each in pod.spec["volumes"] if each["name"] == "ca")
        assert "company" in volume[kind].values()
        (item,) = volume[kind]["items"]
        assert item["key"] == "root.pem"
        assert environment == {"SSL_CERT_FILE": f"{mount['mountPath']}/{item['path']}"}


@pytest.mark.parametrize(
    ("settings", "known"),
    [
        ((), False),
        (("gateway.behindProxy=true",), True),
        (('networkPolicy.clientsFrom=[{"podSelector": {}}]',), True),
        (('networkPolicy={"enabled": false, "clientsFrom": [{"podSelector": {}}]}',), False),
    ],
)
def test_a_gateway_warns_unless_its_clients_are_known(settings: tuple[str, ...], known: bool) -> None:
    (config,) = (
        yaml.safe_load(each["data"]["qlm.yaml"])
        for each in rendered("emulated", *settings)
        if each["kind"] == "ConfigMap" and "qlm.yaml" in each["data"]
    )
    assert config["http"]["behind_proxy"] is known
