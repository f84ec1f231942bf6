"""Values that cannot work are refused before anything is installed, each in one sentence."""

import json

import pytest

from qlm.cli.config.settings import Config
from support.chart import RefusedError, config_of, rendered

EMULATED = [
    ('fleet[0].accelerator="B100"', ['a10 with the accelerator "B100"', "expected one of A10, A100, H100"]),
    ('fleet[0].models=["gpt-2"]', ['a10 with the model "gpt-2"', "expected one of mistral-7b, vicuna-13b"]),
    (
        "models[1].gpuMemoryGiB=200",
        ['"vicuna-13b", which needs 200 GiB and fits on no entry', "a100 has 79.1 GiB"],
    ),
    (
        "models[0].gpuMemoryGiB=30",
        ['a10 with the model "mistral-7b", which needs 30 GiB', "22.4 GiB of its 1 x A10"],
    ),
    ('fleet[0].name="a100"', ['the instance "a100-0"', "expected ids that differ"]),
    ("fleet[1].countMax=1", ["a100 with countMax 1", "expected at least its count, 2"]),
    (
        'secrets.ca={"configMap": "a", "secret": "b"}',
        ['secrets.ca has the configMap "a" and the secret "b"', "expected one of both"],
    ),
    ('fleet[0].name="redis"', ["an entry named redis", "expected another name"]),
    ('fleet[0].name="gateway-admin"', ["an entry named gateway-admin", "expected another name"]),
    ('fleet[0].name="render-0a1b2c3d"', ["an entry named render-0a1b2c3d", "expected another name"]),
    (
        "gateway.terminationGracePeriodSeconds=26",
        ["gateway.terminationGracePeriodSeconds is 26", "expected at least 27"],
    ),
    (
        'config.stop={"notice_s": 2.5, "grace_s": 300}',
        ["gateway.terminationGracePeriodSeconds is 60", "expected at least 310"],
    ),
    (
        'gateway.autoscaling={"enabled": true, "min": 5, "max": 2}',
        ["gateway.autoscaling has min 5 and max 2", "expected max to be at least min"],
    ),
    (
        'config.stop={"grace_s": 30},agents.terminationGracePeriodSeconds=69',
        ["agents.terminationGracePeriodSeconds is 69", "expected at least 70"],
    ),
    ('models[0].adapters=[{"id": "vicuna-13b"}]', ['"vicuna-13b" twice, once as an adapter', "each id once"]),
    ('models[0].adapters=[{"id": "a"}, {"id": "a"}]', ['"a" twice, once as an adapter']),
    (
        'gatewayApi={"enabled": true, "parentRefs": [{}], "hostnames": ["h"], "grpcHostnames": ["h"]}',
        ['gatewayApi has "h" in hostnames and in grpcHostnames', "expected another name for gRPC"],
    ),
    (
        'config.default_slo={"deadline_ms": -5}',
        ["config.default_slo.deadline_ms is -5", "0.01 to 2592000000"],
    ),
    (
        'config.default_slo={"tpot_ms": 5}',
        ["config.default_slo has tpot_ms; expected deadline_ms, or ttft_ms"],
    ),
    (
        'config.interactive_slo={"deadline_ms": 500, "ttft_ms": 5}',
        ["config.interactive_slo has deadline_ms and ttft_ms; expected deadline_ms"],
    ),
    ("models=[]", ["models is empty", "expected at least one model"]),
    ("fleet=[]", ["fleet is empty", "expected at least one kind of instance"]),
    ('models=[{"id": "m"}, {"id": "m"}]', ['models has "m" twice', "expected each id once"]),
    ("rabbitmq.enabled=false", ["no address of another RabbitMQ", "secrets.existing"]),
    ("redis.enabled=false", ["no address of another Redis", "secrets.existing"]),
    ('secrets.broker="amqp://h/"', ["secrets.broker is given, and rabbitmq.enabled is true"]),
    ("ingress.enabled=true", ["ingress.enabled is true without ingress.host"]),
    ("gatewayApi.enabled=true", ["gatewayApi.enabled is true without gatewayApi.parentRefs"]),
    (
        'models[0]={"id": "mistral-7b", "engine": "vllm", "path": "/weights/m", "gpuMemoryGiB": 20}',
        ["a100 with emulated models and models of vLLM"],
    ),
]

UNDER_RAY = [
    (
        'fleet[2]={"name": "more", "accelerator": "A10", "count": 1, "hostMemoryGiB": 8}',
        ["the kind A10 twice, and more differs in host memory"],
    ),
    ('fleet[0].name="ray-a100-extra"', ["an entry named ray-a100-extra", "expected another name"]),
    ('models[3]={"id": "e"}', ["emulated models and models of vLLM"]),
    ('secrets.broker="amqp://h/"', ["secrets.existing is", "expected one of both"]),
]

WRONG_TYPES = [
    ("fleet[0].cuont=1", "fleet.0: Additional property cuont is not allowed"),
    ("gatway={}", "(root): Additional property gatway is not allowed"),
    ('fleet[0].count="two"', "fleet.0.count: Invalid type"),
    ("fleet[0].count=0", "fleet.0.count: Must be greater than or equal to 1"),
    ('fleet[0].name="A 10"', "fleet.0.name: Does not match pattern"),
    (
        'config.limits={"queue_depth_max": -5}',
        "config.limits.queue_depth_max: Must be greater than or equal to 1",
    ),
    ('config.broker="sqlite"', "config: Additional property broker is not allowed"),
    ('secrets.broker="http://h"', "secrets.broker: Does not match pattern"),
    ('secrets.redisPassword="a/b@c:d/e"', "secrets.redisPassword: Does not match pattern"),
    ('secrets.adminToken="short"', "secrets.adminToken: Does not match pattern"),
    ('agents.runtime="docker"', "agents.runtime: agents.runtime must be one of the following"),
    ('models[0].engine="vllm"', "models.0: path is required"),
    ('filesS3={"bucket": "b-1", "prefix": "production"}', "filesS3.prefix: Does not match pattern"),
    ('filesS3={"bucket": "b-1", "prefix": "/production/"}', "filesS3.prefix: Does not match pattern"),
    ('filesS3={"bucket": "_b1"}', "filesS3.bucket: Does not match pattern"),
    ('filesS3={"bucket": "b-1", "endpointUrl": "https://h/path"}', "filesS3.endpointUrl: "),
    ('filesS3={"bucket": "b-1", "region": "eu central"}', "filesS3.region: "),
    ('filesS3={"bucket": "b-1", "timeoutS": 900}', "filesS3.timeoutS: Must be less than or equal to 300"),
    ('filesS3={"bucket": "b-1", "timeoutS": 0.01}', "filesS3.timeoutS: Must be greater than or equal to 0.1"),
    ('fleet[0].environment={"A=B": "x"}', "fleet.0.environment: Does not match pattern"),
    ("gateway.resources.limits=null", "gateway.resources: limits is required"),
]


def refusal(example: str, *settings: str) -> str:
    with pytest.raises(RefusedError) as caught:
        rendered(example, *settings)
    return str(caught.value)


def test_two_entries_that_one_recommendation_would_scale_are_refused() -> None:
    more = [
        f'fleet[{n}]={{"name": "g{n}", "accelerator": "A100", "count": 1, "countMax": 2}}' for n in (1, 2)
    ]
    assert "expected one of them, since recommendations" in refusal("emulated", "keda.enabled=true", *more)


@pytest.mark.parametrize(("setting", "words"), EMULATED)
def test_what_cannot_be_served_is_refused(setting: str, words: list[str]) -> None:
    said = refusal("emulated", setting)
    (sentence,) = [line for line in said.splitlines() if line.startswith("Error: ")]
    for word in words:
        assert word in sentence


@pytest.mark.parametrize(("setting", "words"), UNDER_RAY)
def test_what_ray_cannot_place_is_refused(setting: str, words: list[str]) -> None:
    said = refusal("a10-a100", setting)
    (sentence,) = [line for line in said.splitlines() if line.startswith("Error: ")]
    for word in words:
        assert word in sentence


@pytest.mark.parametrize(("setting", "words"), WRONG_TYPES)
def test_values_of_the_wrong_type_or_name_are_refused_by_the_schema(setting: str, words: str) -> None:
    assert words in refusal("emulated", setting)


@pytest.mark.parametrize(("own", "common"), [(None, None), (40_000_000_000, None), (None, 20_000_000_000)])
def test_models_of_vllm_that_take_turns_need_a_size_of_their_kv_cache(
    own: int | None, common: int | None
) -> None:
    group = {"name": "a100", "accelerator": "A100", "count": 1} | ({"kvCacheBytes": own} if own else {})
    vllm = {"python": "/opt/vllm/bin/python3"} | (
        {"kv_cache_bytes": common} if common else {"kv_cache_bytes": None}
    )
    settings = (f"fleet={json.dumps([group])}", f"config={json.dumps({'vllm': vllm})}")
    if own is None and common is None:
        assert "a100 with 2 models that take turns, and no size of their KV cache" in refusal(
            "single-gpu", *settings
        )
        return
    config = Config(**config_of(rendered("single-gpu", *settings)))
    assert (config.instances[0].kv_cache_bytes, config.vllm.kv_cache_bytes) == (own, common)


def test_names_of_nodes_that_keda_adds_to_ray_are_free_without_it() -> None:
    rendered("emulated", 'agents.runtime="process"', 'fleet[0].name="ray-a100-extra"')


def test_weights_without_their_volume_are_refused() -> None:
    path = 'models[0].path="/models/mistral-7b"'
    said = refusal("a10-a100", "modelsVolume=null", path)
    assert 'models has "mistral-7b" with the path /models/mistral-7b, and modelsVolume is empty' in said
    assert "expected the volume that agents mount at /models" in said
    rendered("a10-a100", path)
