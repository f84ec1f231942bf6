"""lm-eval's clients of an OpenAI server: texts of both routes."""

from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

REASON = "`echo` with `logprobs` is refused: QLM has no log probabilities of prompts"


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


@pytest.mark.skip(REASON)
def test_log_likelihoods(url: str, model: str) -> None:
    client = made("local-completions", url, model, "completions")
    ask = Instance(request_type="loglikelihood", doc={}, arguments=("one", " two"), idx=0)
    ((likelihood, _),) = client.loglikelihood([ask], disable_tqdm=True)
    assert likelihood < 0
