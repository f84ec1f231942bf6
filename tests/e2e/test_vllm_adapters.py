"""LoRA adapters of a real vLLM that QLM starts, against plain `vllm serve` with the same ones."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.qlm_process import serving
from support.tiny_adapter import tiny_adapter
from support.vllm_cpu import PYTHON, SCRIPTS, VllmOptions, running_vllm, tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

NAMES = ("tiny", "poet", "clerk")
BODY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
PROMPTS = ("the queue holds what waits", "each request has its turn")

Clients = tuple[httpx.Client, httpx.Client]


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    """Clients of QLM, with a vLLM of its own, and of a plain vLLM."""
    folder, model = tmp_path_factory.mktemp("adapters"), tiny_model()
    paths = {name: tiny_adapter(folder / name, model, seed) for seed, name in enumerate(NAMES[1:])}
    adapters = [{"id": name, "path": str(path)} for name, path in paths.items()]
    config = {
        "models": [
            {
                "id": "tiny",
                "engine": "vllm",
                "path": str(model),
                "context_tokens": 2048,
                "adapters": adapters,
            }
        ],
        "instances": [{"id": "cpu-0", "accelerator": "CPU", "models": ["tiny"]}],
        "vllm": {
            "python": str(PYTHON),
            "dtype": "float32",
            "block_tokens": 32,
            "kv_cache_bytes": 64 * 2**20,
            "seqs_max": 8,
            "cpu": True,
            "pythonpath": str(SCRIPTS),
        },
    }
    modules = [json.dumps({"name": name, "path": str(path)}) for name, path in paths.items()]
    plain = VllmOptions(extra_args=("--enable-lora", "--max-loras", "2", "--lora-modules", *modules))
    with (
        serving(config, ready_within_s=300) as process,
        running_vllm(plain) as server,
        httpx.Client(base_url=process.url, timeout=120) as through,
        httpx.Client(base_url=server.base_url, timeout=120) as direct,
    ):
        yield through, direct


def text(client: httpx.Client, model: str, prompt: str) -> str:
    body = {"model": model, "prompt": prompt, **BODY}
    answer = client.post("/v1/completions", json=body).raise_for_status().json()
    assert answer["model"] == model
    return str(answer["choices"][0]["text"])


def test_each_adapter_answers_as_in_plain_vllm_and_as_no_other(clients: Clients) -> None:
    through, direct = clients
    texts = {name: [text(through, name, prompt) for prompt in PROMPTS] for name in NAMES}
    assert texts == {name: [text(direct, name, prompt) for prompt in PROMPTS] for name in NAMES}
    assert len({tuple(each) for each in texts.values()}) == len(NAMES)


def test_both_list_the_same_models_with_their_base(clients: Clients) -> None:
    listed = [
        {each["id"]: each["parent"] for each in client.get("/v1/models").json()["data"]} for client in clients
    ]
    assert listed[0] == listed[1] == {"tiny": None, "poet": "tiny", "clerk": "tiny"}
