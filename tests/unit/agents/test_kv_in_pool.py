"""The KV cache in use, as heartbeats report it, counts no request that only waits inside its engine."""

import pytest

from qlm.agents.core.state import AgentSettings
from support.agent_bench import Bench, M
from support.requests import a_request

PROMPT_TOKENS = 1000


def a_full_pool(batching: str, *, kv_tokens: int) -> Bench:
    """Return an engine of four batch slots with twelve requests inside."""
    bench = Bench(seqs_max=4, kv_tokens=kv_tokens, settings=AgentSettings(batching=batching))
    for n in range(12):
        due = a_request(
            f"r{n}", model=M, prompt_tokens=PROMPT_TOKENS, max_tokens=50,
            deadline_ms=60_000, arrival_ns=bench.now_ns,
        )  # fmt: skip
        bench.start(due, name=f"g{n}")
    return bench


@pytest.mark.parametrize("batching", ["unified", "tokenflow"])
def test_only_as_many_as_the_batch_has_slots_count(batching: str) -> None:
    status = a_full_pool(batching, kv_tokens=160_000).agent.status()
    assert (status.running, status.kv_used_tokens) == (4, 4 * PROMPT_TOKENS)


def test_they_never_take_more_than_the_cache_has() -> None:
    status = a_full_pool("unified", kv_tokens=1600).agent.status()
    assert status.kv_used_tokens == 1600
    assert status.kv_usage == 1.0


def test_an_engine_without_a_pool_reports_all_its_requests() -> None:
    bench = Bench(seqs_max=4, kv_tokens=160_000)
    for n in range(3):
        bench.start(a_request(f"r{n}", model=M, prompt_tokens=PROMPT_TOKENS, max_tokens=50), name=f"g{n}")
    assert bench.agent.status().kv_used_tokens == 3 * PROMPT_TOKENS
