"""What applications need of the chart: a volume for files and batches, and render tiers of models."""

import json

import pytest

from qlm.cli.config.settings import parse_config
from qlm.gateway.files.s3.settings import S3Settings
from support.chart import PREFIX, RefusedError, config_of, of_kind, pods, rendered

VOLUME = 'filesVolume={"persistentVolumeClaim": {"claimName": "qlm-files"}}'
ARGS = ["--reasoning-parser", "qwen3"]
RENDER = f"models[0].render={json.dumps({'reasons': True, 'timeoutS': 60, 'extraArgs': ARGS})}"


def test_gateways_alone_write_the_volume_of_files() -> None:
    manifests = rendered("a10-a100", VOLUME, 'config.files={"kept_s": 3600}')
    config = parse_config(config_of(manifests), "the chart")
    assert (str(config.files.dir), config.files.kept_s) == ("/var/lib/qlm/files", 3600)
    for pod in pods(manifests):
        mounts = {each["name"]: each for each in pod.container["volumeMounts"]}
        volumes = {each["name"]: each for each in pod.spec["volumes"]}
        assert ("files" in mounts) == ("files" in volumes) == (pod.component == "gateway")
        if pod.component == "gateway":
            assert mounts["files"] == {"name": "files", "mountPath": "/var/lib/qlm/files"}
            assert volumes["files"]["persistentVolumeClaim"] == {"claimName": "qlm-files"}


def test_gateways_alone_get_the_bucket_of_files_with_its_credentials() -> None:
    bucket = {"bucket": "qlm-files", "endpointUrl": "https://s3.example.org", "secret": "keys"}
    settings = json.dumps(bucket | {"prefix": "a/", "region": "eu-1", "timeoutS": 5})
    manifests = rendered("a10-a100", f"filesS3={settings}", 'config.files={"kept_s": 3600}')
    files = parse_config(config_of(manifests), "the chart").files
    assert files.s3 == S3Settings(
        bucket="qlm-files", prefix="a/", endpoint_url="https://s3.example.org", region="eu-1", timeout_s=5
    )
    assert (files.dir, files.kept_s) == (None, 3600)
    for pod in pods(manifests):
        secrets = {
            each["name"]: each["valueFrom"]["secretKeyRef"]
            for each in pod.container.get("env", ())
            if each["name"].startswith("QLM_S3")
        }
        expected = {
            "QLM_S3_ACCESS_KEY_ID": {"name": "keys", "key": "access-key-id"},
            "QLM_S3_SECRET_ACCESS_KEY": {"name": "keys", "key": "secret-access-key"},
        }
        assert secrets == (expected if pod.component == "gateway" else {})


def test_there_are_no_files_without_a_volume() -> None:
    assert "files" not in config_of(rendered("a10-a100"))


def test_a_model_has_a_render_tier_that_gateways_reach() -> None:
    manifests = rendered("a10-a100", RENDER)
    config = parse_config(config_of(manifests), "the chart")
    model, *others = config.models
    assert model.render is not None and (model.render.reasons, model.render.timeout_s) == (True, 60)
    assert all(each.render is None for each in others)
    (pod,) = (each for each in pods(manifests) if each.component == "render")
    assert model.render.url == f"http://{pod.name}:8000"
    service = of_kind(manifests, "Service")[pod.name]["spec"]
    assert service["type"] == "ClusterIP" and service["selector"].items() <= dict(pod.labels).items()
    assert pod.container["command"] == ["/opt/vllm/bin/vllm", "launch", "render"]
    asked = pod.container["args"]
    assert asked[0] == str(model.path) and asked[-2:] == ARGS
    assert asked[asked.index("--served-model-name") + 1] == model.id
    assert "nvidia.com/gpu" not in json.dumps(pod.container["resources"])
    assert "QLM_STORE" not in {each["name"] for each in pod.container["env"]}, "it needs no secret"
    policy = of_kind(manifests, "NetworkPolicy")[f"{PREFIX}-render"]["spec"]
    (rule,) = policy["ingress"]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    assert policy["policyTypes"] == ["Ingress", "Egress"] and "egress" not in policy


def test_each_render_tier_has_pods_of_its_own() -> None:
    manifests = rendered("a10-a100", RENDER, "models[1].render={}", "render.replicas=3")
    tiers = [each for each in pods(manifests) if each.component == "render"]
    assert [each.replicas for each in tiers] == [3, 3]
    for each in tiers:
        selector = of_kind(manifests, "Service")[each.name]["spec"]["selector"]
        assert [other.name for other in tiers if selector.items() <= dict(other.labels).items()] == [
            each.name
        ]


@pytest.mark.parametrize(
    ("example", "setting", "words"),
    [
        ("emulated", "models[0].render={}", ['"mistral-7b" with render', "expected engine: vllm"]),
        ("a10-a100", 'config.files={"dir": "/x"}', ['config.files.dir is "/x"', "expected filesVolume"]),
        ("a10-a100", 'config.files={"s3": {"bucket": "abc"}}', ["config.files.s3", "expected filesS3"]),
        ("a10-a100", 'filesS3={"prefix": "x/"}', ["bucket"]),
        ("a10-a100", 'models[0].render={"url": "http://x"}', ["url"]),
    ],
)
def test_what_the_chart_decides_is_refused(example: str, setting: str, words: list[str]) -> None:
    with pytest.raises(RefusedError) as caught:
        rendered(example, setting)
    for word in words:
        assert word in str(caught.value)
