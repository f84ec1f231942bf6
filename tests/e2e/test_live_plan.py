"""`qlm plan show` and `qlm plan explain` beside `qlm serve`, as an operator types them."""

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.qlm_process import QLM, QlmProcess, emulated, serving

WAITING = 40


@pytest.fixture
def served() -> Iterator[QlmProcess]:
    """One emulated A100 at full speed, with more to do than goes into a batch."""
    with serving(emulated("mistral-7b", time_scale=1.0)) as process:
        yield process


def qlm(served: QlmProcess, *arguments: str) -> str:
    called = [str(QLM), "plan", *arguments, "--url", served.admin_url]
    done = subprocess.run(called, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def submit(client: httpx.Client) -> str:
    body = {"model": "mistral-7b", "prompt": "x" * 200, "max_tokens": 1000, "ignore_eos": True}
    answer = client.post("/v1/completions", json=body, headers={"Prefer": "respond-async"})
    assert answer.status_code == 202
    return str(answer.json()["id"])


def test_the_last_of_many_requests_is_explained(served: QlmProcess) -> None:
    with httpx.Client(base_url=served.url, timeout=120) as client:

        def about(id: str) -> dict[str, Any]:
            reported: dict[str, Any] = client.get(f"{served.admin_url}/admin/v1/requests/{id}").json()
            return reported

        ids = [submit(client)]
        while (about(ids[-1])["waits"] or {"queued": 0})["queued"] < WAITING:
            ids.extend(submit(client) for _ in range(WAITING))

        def planned() -> bool:
            place = json.loads(qlm(served, "explain", ids[-1], "--json"))["place"]
            return place is not None and place["turn"] is not None

        give_up_s = time.monotonic() + 30
        while not planned():
            assert time.monotonic() < give_up_s, qlm(served, "explain", ids[-1])
        text = qlm(served, "explain", ids[-1])
        assert "of its group; its turn comes in " in text and "it would run earlier if" in text
        assert "another instance served mistral-7b: i0 is the only one" in text
        assert "its times count from then" in qlm(served, "show")
        running = client.get(f"{served.admin_url}/admin/v1/requests", params={"state": "running", "limit": 1})
        (first,) = running.json()["requests"]
        assert f"it runs on {first['instance']}, begun " in qlm(served, "explain", first["id"])


def test_the_plan_generator_takes_over_once_its_code_is_compiled(served: QlmProcess) -> None:
    """Until then, and if it were never to come, earliest deadline first plans."""
    with httpx.Client(base_url=served.url, timeout=120) as client:
        give_up_s = time.monotonic() + 100
        while not ("made by fast" in (text := qlm(served, "show")) or "the earlier plan, kept" in text):
            assert time.monotonic() < give_up_s, text
            assert "made by edf" in text
            submit(client)
