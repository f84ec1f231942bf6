"""Requests that share KV blocks are not preempted for what they do not take."""

import pytest

from qlm.agents.batching.policies.registry import POLICIES
from support.vllm_engine import BLOCK_TOKENS, EngineRequest, engine, hosted

SHARED, OWN = 125, 6
"""KV blocks of the common prompt, and of what each request has besides."""


def running(number: int) -> EngineRequest:
    return EngineRequest(
        f"r{number}",
        "RUNNING",
        num_prompt_tokens=SHARED * BLOCK_TOKENS,
        num_output_tokens=OWN * BLOCK_TOKENS - 8,
        blocks=SHARED + OWN,
    )


@pytest.mark.parametrize("name", POLICIES)
def test_nobody_is_preempted_while_most_blocks_are_free(name: str) -> None:
    blocks = 5000
    scheduler = engine(
        [running(number) for number in range(100)], kv_blocks=blocks, free=blocks - SHARED - 100 * OWN
    )
    hosted(scheduler, name).prepare(1.0, paused=False)
    assert len(scheduler.running) == 100


def test_without_shared_blocks_the_engine_has_as_many_as_it_says() -> None:
    scheduler = engine([EngineRequest("a", "RUNNING", blocks=7), EngineRequest("b")], kv_blocks=40, free=33)
    host = hosted(scheduler, "edf")
    host.prepare(1.0, paused=False)
    assert scheduler.waiting.open == 1
    scheduler.waiting[0].num_prompt_tokens = 40 * BLOCK_TOKENS
    host.arrived(scheduler.waiting[0], 1.0)
    host.prepare(2.0, paused=False)
    assert scheduler.waiting.open == 0
