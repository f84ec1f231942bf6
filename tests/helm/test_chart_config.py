"""What the section `config` of the values may say beside what the chart writes itself."""

import json
import re

import pytest

from qlm.cli.config.settings import Config
from qlm.cli.config.slo import SloConfig
from qlm.gateway.core.access import AccessRules
from support.chart import NAMESPACE, PREFIX, ROOT, RefusedError, config_of, of_kind, pods, rendered

PAGE = ROOT / "docs/deploy-kubernetes.md"


def test_settings_that_the_page_names_are_taken() -> None:
    said = re.findall(r"`(config\.[a-z_.]+): (\w+)`", PAGE.read_text("utf-8"))
    assert ("config.http.api_keys", "required") in said
    config = Config(**config_of(rendered("emulated", *(f"{key}={json.dumps(value)}" for key, value in said))))
    assert config.http.keys_required
    assert config.http.host == "0.0.0.0"


def test_names_and_origins_of_the_listeners_are_taken() -> None:
    http = {"allowed_hosts": ["llm.example.com"], "allowed_origins": ["https://chat.example.com"]}
    admin = {"allowed_hosts": ["operators.example.com"]}
    config = Config(**config_of(rendered("emulated", f"config={json.dumps({'http': http, 'admin': admin})}")))
    assert config.http.allowed_hosts[0] == "llm.example.com"
    assert config.http.allowed_origins == ("https://chat.example.com",)
    assert config.admin.allowed_hosts[0] == "operators.example.com"


@pytest.mark.parametrize("given", [[], ["operators.example.com"]])
def test_an_agent_that_stops_may_call_the_gateway_whatever_names_are_allowed(given: list[str]) -> None:
    manifests = rendered("emulated", f"config={json.dumps({'admin': {'allowed_hosts': given}})}")
    admin = Config(**config_of(manifests)).admin
    rules = AccessRules(listens_on=admin.host, hosts=admin.allowed_hosts)
    (agent, *_) = (pod for pod in pods(manifests) if pod.component == "agent")
    (host,) = re.findall(
        "--url http://([^ /]+)", agent.container["lifecycle"]["preStop"]["exec"]["command"][-1]
    )
    assert rules.accepts_host(host)
    assert rules.accepts_host("elsewhere.example.com") is not bool(given)


@pytest.mark.parametrize(("section", "service"), [("http", "gateway"), ("admin", "gateway-admin")])
def test_the_service_of_a_listener_is_one_of_its_names_once_it_has_some(section: str, service: str) -> None:
    name = f"{PREFIX}-{service}"
    names = ["a.example.com", name, f"{name}.{NAMESPACE}", f"{name}.{NAMESPACE}.svc"]
    for given, expected in ([], []), (names[:1], names), (names[:2], names):
        manifests = rendered("emulated", f"config={json.dumps({section: {'allowed_hosts': given}})}")
        assert config_of(manifests)[section].get("allowed_hosts", []) == expected


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("http", "port", 80), ("http", "behind_proxy", True), ("admin", "host", "127.0.0.1")],
)
def test_what_the_chart_writes_of_the_listeners_is_refused(section: str, key: str, value: object) -> None:
    with pytest.raises(RefusedError, match=f"config.{section}: Additional property {key} is not allowed"):
        rendered("emulated", f"config={json.dumps({section: {key: value}})}")


@pytest.mark.parametrize(
    ("limit", "bytes_max"),
    [
        ("2Gi", 1_288_490_188),
        ("1.5G", 900_000_000),
        (".5Gi", 322_122_547),
        ("1.Gi", 644_245_094),
        ("3000000000", 1_800_000_000),
        (4_000_000_000, 2.4e9),
        ("2Mi", 1_258_291),
        ("8Ei", 5_534_023_222_112_865_280),
    ],
)
def test_redis_refuses_before_its_memory_limit_ends_it(limit: str | int, bytes_max: float) -> None:
    amounts = {"cpu": 1, "memory": limit}
    resources = json.dumps({"requests": amounts, "limits": amounts})
    (redis,) = (
        pod for pod in pods(rendered("emulated", f"redis.resources={resources}")) if pod.component == "redis"
    )
    words = redis.container["args"][0].split()
    assert words[words.index("--maxmemory") + 1] == str(int(bytes_max))
    assert words[words.index("--maxmemory-policy") + 1] == "noeviction"


@pytest.mark.parametrize("limit", ["0", "0.5", 0.5, "1Mi", "16Ei"])
def test_a_memory_limit_with_which_redis_could_not_work_is_refused(limit: str | float) -> None:
    resources = json.dumps({"requests": {}, "limits": {"cpu": 1, "memory": limit}})
    said = f"redis.resources.limits.memory is {limit}; expected 2Mi to 8Ei, of which Redis fills 60 %"
    with pytest.raises(RefusedError, match=said):
        rendered("emulated", f"redis.resources={resources}")


@pytest.mark.parametrize("size", ["1Pi", "1.5Ti", "20Gi", 1000])
def test_sizes_of_volumes_are_those_of_kubernetes(size: str | int) -> None:
    storage = json.dumps({"size": size, "className": ""})
    sets = of_kind(rendered("emulated", f"redis.storage={storage}"), "StatefulSet")
    (claim,) = sets[f"{PREFIX}-redis"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == size


@pytest.mark.parametrize("objective", [{"ttft_ms": 200, "tpot_ms": None}, {"ttft_ms": None}])
def test_objectives_with_empty_fields_are_taken(objective: dict[str, int | None]) -> None:
    written = config_of(rendered("emulated", f"config.default_slo={json.dumps(objective)}"))
    assert Config(**written).default_slo.slo() == SloConfig(**objective).slo()


@pytest.mark.parametrize("key", ["region", "endpointUrl"])
def test_what_is_empty_of_a_bucket_is_left_out(key: str) -> None:
    bucket = {"bucket": "files", "secret": "s", key: ""}
    written = config_of(rendered("emulated", f"filesS3={json.dumps(bucket)}"))
    assert written["files"] == {"s3": {"bucket": "files"}}
