"""`batching_by: aborts`: the agent lets urgent requests go first on an engine that knows nothing of it."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from support.flaky import wait_until
from support.qlm_process import QlmProcess, serving
from support.vllm_cpu import VllmServer, tiny_model

URGENT_MS = 15_000


class Clients:
    """Clients of a QLM with two batch slots and `edf` by aborts."""

    def __init__(self, qlm: QlmProcess, model: str, pool: ThreadPoolExecutor) -> None:
        self._qlm, self._model, self._pool = qlm, model, pool

    def asks(self, name: str, deadline_ms: float, tokens: int) -> Future[dict[str, Any]]:
        """Ask for an answer of so many tokens."""
        body = {
            "model": self._model, "prompt": f"The {name} story.", "max_tokens": tokens, "ignore_eos": True,
            "temperature": 0, "slo": {"deadline_ms": deadline_ms},
        }  # fmt: skip
        url = f"{self._qlm.url}/v1/completions"
        return self._pool.submit(lambda: httpx.post(url, json=body, timeout=120).raise_for_status().json())

    def events(self, answer: dict[str, Any]) -> list[tuple[str, str]]:
        """Return what has happened to a request, and why."""
        id = answer["id"].removeprefix("cmpl-")
        found = httpx.get(f"{self._qlm.admin_url}/admin/v1/requests/{id}").raise_for_status().json()
        return [(each["what"], each["why"]) for each in found["events"]]

    def running(self) -> int:
        """Return the requests in the engine."""
        listed = httpx.get(f"{self._qlm.admin_url}/admin/v1/instances").json()["instances"]
        return sum(int(each["running"]) for each in listed)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def an_urgent_request_goes_first(clients: Clients, tokens: int) -> list[dict[str, Any]]:
    """Fill both slots, let an urgent request come, and return the three answers."""
    late, soon = clients.asks("late", 900_000, tokens), clients.asks("soon", 600_000, tokens)
    wait_until(lambda: clients.running() == 2, "both slots are taken", timeout_s=30.0, pause_s=0.05)
    urgent = clients.asks("urgent", URGENT_MS, 20).result()
    assert not late.done() and not soon.done(), "the urgent one does not wait for an end"
    answers = [late.result(), soon.result(), urgent]
    assert [each["usage"]["completion_tokens"] for each in answers] == [tokens, tokens, 20]
    happened = [clients.events(each) for each in answers]
    (why,) = [why for what, why in happened[0] if what == "evicted"]
    assert why.endswith("for its batch policy")
    assert [what for what, _ in happened[0]] == ["accepted", "leased", "evicted", "resumed", "ended"]
    assert [what for what, _ in happened[1]] == [what for what, _ in happened[2]] == [
        "accepted", "leased", "ended",
    ]  # fmt: skip
    return answers


def test_on_an_emulated_engine(pool: ThreadPoolExecutor) -> None:
    instance = {"id": "a", "accelerator": "A100", "models": ["mistral-7b"], "seqs_max": 2}
    config = {
        "models": [{"id": "mistral-7b", "context_tokens": 4096}],
        "instances": [instance | {"batching": "edf", "batching_by": "aborts"}],
    }
    with serving(config) as qlm:
        clients = Clients(qlm, "mistral-7b", pool)
        first = an_urgent_request_goes_first(clients, 500)
        again = [
            clients.asks(name, 600_000, tokens).result() for name, tokens in (("late", 500), ("urgent", 20))
        ]
    assert first[0]["choices"] == again[0]["choices"], "as without an eviction"
    assert first[2]["choices"] == again[1]["choices"]


@pytest.mark.timeout(400)
def test_on_a_vllm_that_was_started_without_qlm(vllm_server: VllmServer, pool: ThreadPoolExecutor) -> None:
    instance = {
        "id": "a",
        "accelerator": "CPU",
        "models": ["tiny"],
        "url": vllm_server.base_url,
        "seqs_max": 2,
    }
    config = {
        "models": [{"id": "tiny", "engine": "vllm", "path": str(tiny_model()), "context_tokens": 2048}],
        "instances": [instance | {"batching": "edf", "batching_by": "aborts"}],
    }
    with serving(config, ready_within_s=180.0) as qlm:
        answers = an_urgent_request_goes_first(Clients(qlm, "tiny", pool), 1500)
    for name, answer in zip(("late", "soon", "urgent"), answers, strict=True):
        body = {
            "model": "tiny", "prompt": f"The {name} story.", "ignore_eos": True, "temperature": 0,
            "max_tokens": answer["usage"]["completion_tokens"],
        }  # fmt: skip
        own = httpx.post(f"{vllm_server.base_url}/v1/completions", json=body, timeout=120).json()
        assert answer["choices"][0]["text"] == own["choices"][0]["text"], f"{name}: as the engine's own"
