"""What requests do not name, through QLM and straight from the same vLLM: sampling, output limits, ends."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.qlm_process import serving
from support.vllm_cpu import VllmOptions, running_vllm, tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

CONTEXT = 96
OWN = {"temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2}
WORDS = "the queue holds what waits until its turn has come and no request is lost"
CHAT = {"messages": [{"role": "user", "content": WORDS}]}
LONG = {"messages": [{"role": "user", "content": f"{WORDS} {WORDS} {WORDS}"}]}

Clients = tuple[httpx.Client, httpx.Client]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model with sampling defaults of its own; one of the usual words ends answers besides EOS."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    shutil.copytree(tiny_model(), folder)
    settings = json.loads((folder / "generation_config.json").read_text("utf-8"))
    settings |= OWN | {"max_new_tokens": 40, "eos_token_id": [settings["eos_token_id"], *range(300, 330)]}
    (folder / "generation_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


@pytest.fixture(scope="module")
def clients(model: Path) -> Iterator[Clients]:
    """Clients of QLM and of the vLLM that it is attached to."""
    options = VllmOptions(model=model, max_model_len=CONTEXT)
    with running_vllm(options) as server:
        config = {
            "models": [{"id": "tiny", "engine": "vllm", "path": str(model), "context_tokens": CONTEXT}],
            "instances": [{"id": "cpu-0", "accelerator": "CPU", "models": ["tiny"], "url": server.base_url}],
        }
        with (
            serving(config) as process,
            httpx.Client(base_url=process.url, timeout=120) as through,
            httpx.Client(base_url=server.base_url, timeout=120) as direct,
        ):
            yield through, direct


def answer(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """All of an answer that does not depend on who gives it."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    whole = client.post(path, json=body).raise_for_status().json()
    choice = whole["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    counts = {key: whole["usage"][key] for key in ("prompt_tokens", "completion_tokens")}
    reasons = {key: choice[key] for key in ("finish_reason", "stop_reason")}
    return {"text": text, **reasons, **counts}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(CHAT | {"seed": 1}, id="the model's sampling"),
        pytest.param(CHAT | {"seed": 2, "temperature": 1.5}, id="own temperature"),
        pytest.param(CHAT | {"seed": 3, "top_k": -1, "top_p": 1, "repetition_penalty": 1}, id="neutral"),
        pytest.param(CHAT | {"temperature": 0}, id="greedy"),
        pytest.param(CHAT | {"temperature": 0, "ignore_eos": True}, id="max_new_tokens"),
        pytest.param(LONG | {"temperature": 0, "ignore_eos": True}, id="the context"),
        pytest.param(CHAT | {"temperature": 0, "ignore_eos": True, "max_tokens": 50}, id="own limit"),
        pytest.param({"prompt": WORDS, "seed": 4, "ignore_eos": True}, id="completion"),
        pytest.param({"prompt": [5, 6, 7], "seed": 5, "max_tokens": 30}, id="completion with limit"),
        pytest.param({"prompt": WORDS, "temperature": 0, "max_tokens": 30, "stop": ["e", "a"]}, id="stop"),
        pytest.param(
            {"prompt": WORDS, "seed": 7, "max_tokens": 30, "stop_token_ids": [*range(400, 464)]},
            id="stop token",
        ),
        pytest.param({"prompt": [[5, 6, 7]], "temperature": None, "seed": 6}, id="list of one, null"),
    ],
)
def test_the_same_request_has_the_same_answer(clients: Clients, body: dict[str, Any]) -> None:
    through, direct = clients
    assert answer(through, body) == answer(direct, body)


def test_the_second_of_two_equal_prompts_is_found_in_the_cache(clients: Clients) -> None:
    body = {"prompt": [*range(1000, 1070)], "max_tokens": 2, "temperature": 0}
    details = [client.post("/v1/completions", json=body).json()["usage"] for client in (*clients, *clients)]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in details]
    assert cached[0] == 0
    assert cached[1] == cached[2] == cached[3] == 64


def test_the_cases_end_where_they_are_meant_to(clients: Clients) -> None:
    """The comparison above would also hold if both had 16 tokens each time."""
    through, _ = clients
    endless = {"temperature": 0, "ignore_eos": True}
    ended = answer(through, CHAT | endless)
    assert (ended["completion_tokens"], ended["finish_reason"]) == (40, "length")
    filled = answer(through, LONG | endless)
    assert filled["prompt_tokens"] + filled["completion_tokens"] == CONTEXT
    assert filled["completion_tokens"] < 40
    assert answer(through, {"prompt": WORDS, **endless})["completion_tokens"] == 16
    stopped = answer(through, {"prompt": WORDS, "temperature": 0, "max_tokens": 30, "stop": ["e", "a"]})
    assert stopped["stop_reason"] in ("e", "a")
    sampled = {answer(through, CHAT | {"seed": n})["text"] for n in range(4)}
    assert len(sampled) > 1, "the model's temperature is used"
