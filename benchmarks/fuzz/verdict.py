"""Verdict on one answer: its status, its shape, and whose text it has."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.fuzz.http_requests import HttpRequest
from benchmarks.fuzz.wire import Answer
from benchmarks.steady import answered_ids
from qlm.gateway.core.tokenizer import ChatMessage
from qlm.gateway.tokenizers.byte import ByteTokenizer

EXPECTED_5XX: Final = frozenset({(504, "expired")})
"""Errors of requests that ask to be dropped when they are late; nothing else is broken here."""

_OWN_ENDS: Final = ("stop", "stop_token_ids", "logit_bias", "min_tokens")
"""Fields with which an answer may differ from that of the prompt alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that must not happen.

    Attributes:
        part: `http` or `rpc`, with the number of the request; or another part without one.
        number: Number of the request; None if it is not known which.
        what: The finding, in words.
    """

    part: str
    number: int | None
    what: str


def judge(request: HttpRequest, answer: Answer) -> str | None:
    """Return what is wrong with an answer; None if nothing is."""
    body = _json(answer)
    code = body.get("error", {}).get("code") if isinstance(body, dict) else None
    if answer.status >= 500 and (answer.status, code) not in EXPECTED_5XX:
        return f"status {answer.status}, {answer.body[:200]!r}"
    if answer.status == 200 and request.api is not None and isinstance(body, dict):
        return _wrong_text(request, body)
    if answer.status >= 400 and request.framed and answer.body and code is None:
        return f"an error without OpenAI's shape: status {answer.status}, {answer.body[:200]!r}"
    return None


def _json(answer: Answer) -> Any:
    if not answer.headers.get("content-type", "").startswith("application/json"):
        return None
    try:
        return json.loads(answer.body) if answer.body else None
    except ValueError:
        return None


def _wrong_text(request: HttpRequest, answer: dict[str, Any]) -> str | None:
    """Compare a plain answer with that of its own prompt, if nothing else in the body changes it."""
    try:
        body = json.loads(request.body)
        prompt_ids = _prompt_ids(body)
        usage, choice = answer["usage"], answer["choices"][0]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if body.get("ignore_eos") is not True or any(body.get(name) for name in _OWN_ENDS):
        return None
    if len(answer["choices"]) > 1:  # of several prompts, whose usage is a sum
        return None
    if usage["prompt_tokens"] != len(prompt_ids):
        return f"an answer to {usage['prompt_tokens']} prompt tokens; there were {len(prompt_ids)}"
    echoed = ByteTokenizer().decode(prompt_ids) if body.get("echo") is True and "prompt" in body else ""
    expected = echoed + bytes(answered_ids(prompt_ids, usage["completion_tokens"])).decode()
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return None if text == expected else f"the answer to another prompt: {text!r} in place of {expected!r}"


def _prompt_ids(body: dict[str, Any]) -> Sequence[int]:
    if "messages" in body:
        messages = [ChatMessage(role=each["role"], content=each["content"]) for each in body["messages"]]
        return ByteTokenizer().encode_chat(messages)
    prompt = body["prompt"]
    if isinstance(prompt, list) and isinstance(prompt[0], int):
        return prompt
    return ByteTokenizer().encode(prompt if isinstance(prompt, str) else prompt[0])
