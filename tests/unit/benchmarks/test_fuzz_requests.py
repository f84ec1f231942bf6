"""Fuzzed requests: each is a function of seed and number, and answers are judged by their own prompt."""

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.fuzz.http_requests import HttpRequest, http_request
from benchmarks.fuzz.progress import Progress, load
from benchmarks.fuzz.rpc_calls import rpc_call
from benchmarks.fuzz.verdict import judge
from benchmarks.fuzz.wire import Answer
from benchmarks.setups import save
from benchmarks.steady import answered_ids

HOST = b"localhost:1"
JSON = {"content-type": "application/json"}


def test_a_number_names_one_request_and_numbers_differ() -> None:
    first = [http_request(1, n, "mistral-7b", HOST).data for n in range(300)]
    assert first == [http_request(1, n, "mistral-7b", HOST).data for n in range(300)]
    assert len(set(first)) > 250
    assert first != [http_request(2, n, "mistral-7b", HOST).data for n in range(300)]
    calls = [rpc_call(1, n, "mistral-7b").data for n in range(300)]
    assert calls == [rpc_call(1, n, "mistral-7b").data for n in range(300)]


def test_requests_are_of_all_kinds() -> None:
    kinds: Counter[str] = Counter()
    for n in range(3000):
        request = http_request(1, n, "mistral-7b", HOST)
        kinds["misframed"] += not request.framed
        if request.api is None:
            kinds["other"] += request.framed
            continue
        try:
            kinds["json"] += isinstance(json.loads(request.body), dict)
        except (ValueError, RecursionError):
            kinds["not json"] += 1
        kinds["keyed"] += b"idempotency-key" in request.data
        kinds["chunked"] += b"transfer-encoding: chunked" in request.data
    assert min(kinds[kind] for kind in ("misframed", "other", "json", "not json", "keyed", "chunked")) > 50


@pytest.mark.parametrize(
    ("status", "code", "wrong"),
    [(500, "internal_error", True), (504, "expired", False), (503, "engine_lost", True), (400, None, True)],
)
def test_only_errors_with_a_cause_and_a_shape_are_right(status: int, code: str | None, wrong: bool) -> None:
    body = json.dumps({"error": {"code": code}}).encode()
    request = HttpRequest(number=0, data=b"", api="completions", body=b"{}")
    assert (judge(request, Answer(status=status, headers=JSON, body=body)) is not None) is wrong


@pytest.mark.parametrize("prompt", ["Hi", "Ho"])
def test_the_answer_to_another_prompt_is_found(prompt: str) -> None:
    sent = json.dumps({"prompt": "Hi", "ignore_eos": True}).encode()
    text = bytes(answered_ids(prompt.encode(), 5)).decode()
    content = {"choices": [{"text": text}], "usage": {"prompt_tokens": 2, "completion_tokens": 5}}
    request = HttpRequest(number=0, data=b"", api="completions", body=sent)
    wrong = judge(request, Answer(status=200, headers=JSON, body=json.dumps(content).encode()))
    assert (wrong is None) is (prompt == "Hi")


def test_a_client_that_waits_more_than_twice_as_long_is_a_finding_that_is_kept(tmp_path: Path) -> None:
    progress = Progress(seed=1)
    alone = [{"ms": 50.0, "wrong": ""}] * 100
    progress.compare(alone, [{"ms": 99.0, "wrong": ""}] * 100)
    assert not progress.findings
    progress.compare(alone, [{"ms": 99.0, "wrong": ""}] * 98 + [{"ms": 101.0, "wrong": "status 500"}] * 2)
    assert [each.part for each in progress.findings] == ["well-behaved client"] * 3
    progress.statuses["200"] += 1
    file = tmp_path / "progress.json"
    save(file, progress.plain())
    again = load(file, 1, resumed=True)
    assert (again.findings, again.statuses) == (progress.findings, progress.statuses)
    assert load(file, 1, resumed=False).findings == []
