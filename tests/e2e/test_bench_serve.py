"""`qlm bench` of `qlm serve` on an emulated engine: client and gateway see the same reader."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.exposition import value
from support.qlm_process import QLM, QlmProcess, emulated, serving

REQUESTS, TOKENS = 30, 30
ATTEMPTS = 3
"""A machine that is short of processor time delays the client."""
AGREE_S = 0.05
"""Difference of idle time that the way from the gateway to the client may make."""


@pytest.fixture(scope="module")
def served() -> Iterator[QlmProcess]:
    """One emulated A100 at an eighth of its speed: slower than the reader below."""
    with serving(emulated("mistral-7b", time_scale=8.0)) as process:
        yield process


def bench(*arguments: str) -> str:
    done = subprocess.run(
        [str(QLM), "bench", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
def test_idle_time_of_client_and_gateway_agree(served: QlmProcess, tmp_path: Path, endpoint: str) -> None:
    differences = []
    for attempt in range(ATTEMPTS):
        differences.append(difference_s(served, tmp_path / f"{attempt}.json", endpoint))
        if abs(differences[-1]) <= AGREE_S:
            return
    raise AssertionError(f"client minus gateway, s: {differences}")


def difference_s(served: QlmProcess, file: Path, endpoint: str) -> float:
    """Measure once, check all but the times, and return the client's mean idle time less the gateway's."""
    before = reading(served)
    load = f"--request-rate 8 --num-prompts {REQUESTS} --input-len 30 --output-len {TOKENS} --seed 5"
    output = bench(
        *(served.url, "--endpoint", endpoint, *load.split(), "--save", str(file)),
        *("--slo", "ttft:50", "pace:60", "--json"),
    )
    counted = before["idle_seconds_count"] + REQUESTS
    limit_s = time.monotonic() + 20
    while (after := reading(served))["idle_seconds_count"] < counted and time.monotonic() < limit_s:
        pass  # the gateway may count the end of an answer after its client has it
    after = {name: now - before[name] for name, now in after.items()}
    found = json.loads(output)
    assert (found["requests"], found["answered"]) == (REQUESTS, REQUESTS)
    assert found["counting"] == f"usage of each event ({REQUESTS} answers)"
    assert found["vllm"]["total_output_tokens"] == REQUESTS * TOKENS
    assert found["slo"] == {"ttft_ms": 50, "tokens_per_s": 60}
    reader = found["readers"][0]
    assert (reader["ttft_s"], reader["tokens_per_s"]) == (0.05, 60)
    assert reader["stalls_per_answer"] > 0
    assert after["stalls_total"] > 0
    assert after["idle_seconds_count"] == REQUESTS
    # Without idle time there would be nothing to compare.
    assert after["idle_seconds_sum"] / REQUESTS > 4 * AGREE_S
    return mean_idle_s(file) - after["idle_seconds_sum"] / REQUESTS


def reading(served: QlmProcess) -> dict[str, float]:
    """Return the gateway's metrics of readers, added up; 0 before the first request."""
    text = httpx.get(f"{served.admin_url}/metrics", timeout=120).text
    found = {}
    for name in ("idle_seconds_sum", "idle_seconds_count", "stalls_total"):
        try:
            found[name] = value(text, f"qlm_gateway_request_{name}")
        except KeyError:
            found[name] = 0.0
    return found


def mean_idle_s(file: Path) -> float:
    """Return the mean idle time of the reader of the test, from the times in a saved file."""
    idle = []
    for request in json.loads(file.read_text("utf-8"))["runs"][0]["requests"]:
        token, late_s = 0, 0.0
        for at_s, tokens in zip(request["chunk_times_s"], request["chunk_tokens"], strict=True):
            if tokens:
                late_s = max(late_s, at_s - request["scheduled_s"] - 0.05 - token / 60)
            token += tokens
        idle.append(late_s)
    return sum(idle) / len(idle)


def test_an_objective_in_headers_is_the_gateways_too(served: QlmProcess) -> None:
    load = "--request-rate inf --num-prompts 3 --input-len 10 --output-len 4"
    output = bench(served.url, *load.split(), "--slo", "deadline:9000", "--slo-as", "headers", "--json")
    assert json.loads(output)["slo_met_share"] == 1
    listed = httpx.get(f"{served.admin_url}/admin/v1/requests?limit=3", timeout=120).json()["requests"]
    assert [".deadline-" in each["queue"] for each in listed] == [True] * 3
