"""lm-eval's clients of an OpenAI server: texts of both routes."""

from typing import Any

import pytest
import requests
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model


class ServedTokenizer:
    """The tokenizer of the model, as the server has it; in the form of tiktoken's."""

    eot_token = 0

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model

    def encode(self, text: str, **_: Any) -> list[int]:
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        ids: list[int] = requests.post(f"{self._url}/tokenize", json=body, timeout=60).json()["tokens"]
        return ids

    def encode_batch(self, texts: list[str], **_: Any) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: list[int], **_: Any) -> str:
        body = {"model": self._model, "tokens": ids}
        text: str = requests.post(f"{self._url}/detokenize", json=body, timeout=60).json()["prompt"]
        return text

    def decode_batch(self, each: list[list[int]], **_: Any) -> list[str]:
        return [self.decode(ids) for ids in each]


def made(kind: str, url: str, model: str, route: str, **more: Any) -> Any:
    """Make one of its clients, without a tokenizer of its own."""
    options = {"base_url": f"{url}/v1/{route}", "tokenizer_backend": None, "max_retries": 1, **more}
    return get_model(kind)(model=model, max_gen_toks=8, **options)


def asked(prompts: list[Any]) -> list[Instance]:
    options = {"until": ["\n\n"], "max_gen_toks": 8, "temperature": 0}
    return [
        Instance(request_type="generate_until", doc={}, arguments=(each, options), idx=0) for each in prompts
    ]


@pytest.mark.parametrize("parallel", [1, 4])
def test_completions_of_several_prompts(url: str, model: str, parallel: int) -> None:
    client = made("local-completions", url, model, "completions", num_concurrent=parallel, batch_size=2)
    texts = client.generate_until(asked(["one", "two", "three"]), disable_tqdm=True)
    assert len(texts) == 3
    assert all(isinstance(text, str) for text in texts)


def test_chat_completions(url: str, model: str) -> None:
    client = made("local-chat-completions", url, model, "chat/completions")
    prompt = client.apply_chat_template([{"role": "user", "content": "Hi"}])
    (text,) = client.generate_until(asked([prompt]), disable_tqdm=True)
    assert text


@pytest.mark.parametrize("parallel", [1, 4])
def test_log_likelihoods(url: str, model: str, parallel: int) -> None:
    options = {"num_concurrent": parallel, "batch_size": 2, "tokenized_requests": True}
    client = made("local-completions", url, model, "completions", **options)
    tokenizer = ServedTokenizer(url, model)
    client.tokenizer, client.tokenizer_backend = tokenizer, "tiktoken"
    asks = [
        Instance(request_type="loglikelihood", doc={}, arguments=("one", each), idx=0)
        for each in (" two", " three", " four")
    ]
    found = client.loglikelihood(asks, disable_tqdm=True)
    assert len(found) == 3
    for ask, (likelihood, _greedy) in zip(asks, found, strict=True):
        prompt = tokenizer.encode("".join(ask.arguments))
        known = scores_of(url, model, prompt)[len(tokenizer.encode(ask.arguments[0])) :]
        assert likelihood == pytest.approx(sum(known), abs=1e-3)


def scores_of(url: str, model: str, prompt: list[int]) -> list[float]:
    """Return the log probabilities of the tokens of a prompt; 0 for the first."""
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "prompt_logprobs": 0, "temperature": 0}
    listed = requests.post(f"{url}/v1/completions", json=body, timeout=60).json()["choices"][0]
    known = listed["prompt_logprobs"][1:]
    return [0.0, *(each[str(id)]["logprob"] for id, each in zip(prompt[1:], known, strict=True))]
