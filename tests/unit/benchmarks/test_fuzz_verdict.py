"""The fuzzer knows the answer of the emulated engine to each prompt."""

import json
from typing import Any

from benchmarks.fuzz.http_requests import HttpRequest
from benchmarks.fuzz.verdict import judge
from benchmarks.fuzz.wire import Answer
from benchmarks.steady import answered_ids


def judged(body: dict[str, Any], text: str) -> str | None:
    request = HttpRequest(number=1, data=b"", api="completions", body=json.dumps(body).encode())
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 4}
    answer = json.dumps({"usage": usage, "choices": [{"text": text}]}).encode()
    return judge(request, Answer(status=200, headers={"content-type": "application/json"}, body=answer))


def test_an_answer_with_echo_begins_with_its_prompt() -> None:
    own = bytes(answered_ids(b"Hello", 4)).decode()
    body = {"prompt": "Hello", "ignore_eos": True}
    for echo in ({}, {"echo": False}):
        assert judged(body | echo, own) is None
        assert "another prompt" in (judged(body | echo, f"Hello{own}") or "")
    for prompt in ("Hello", list(b"Hello")):
        assert judged(body | {"prompt": prompt, "echo": True}, f"Hello{own}") is None
        assert "another prompt" in (judged(body | {"prompt": prompt, "echo": True}, own) or "")
