"""What `qlm plan explain` says of the batch policy of the engine that has a request."""

from typing import Any

import pytest

from qlm.agents.batching.policies.registry import FCFS, POLICIES
from qlm.cli.plans.batching_text import RULES, batching_lines, policy_of, reader_text_s

READING = {"kind": "reading", "ttft_ms": 1000, "tokens_per_s": 5, "on_miss": "serve"}


def running(slo: dict[str, Any] = READING, tokens: int = 10, **more: Any) -> dict[str, Any]:
    return {
        "status": "running",
        "instance": "a",
        "arrival_s": 100.0,
        "deadline_s": None if slo["kind"] == "batch" else 101.0,
        "slo": slo,
        "output_tokens": tokens,
        "met": None,
        "late_by_s": None,
        **more,
    }


def said(request: dict[str, Any], policy: str | None = "unified", now_s: float = 102.0) -> str:
    return "\n".join(batching_lines(request, policy, now_s))


def test_every_policy_has_its_rule() -> None:
    assert RULES.keys() == POLICIES.keys() - {FCFS}


def test_the_policy_is_that_of_the_configured_instance() -> None:
    configured: list[dict[str, Any]] = [
        {"id": "a", "batching": "andes"},
        {"id": "b", "batching": None},
        {"id": "c"},
    ]
    assert [policy_of(configured, id) for id in ("a", "b", "c", "d", None)] == [
        "andes",
        "fcfs",
        "fcfs",
        None,
        None,
    ]


def test_a_reader_with_text_may_be_on_hold_until_it_is_read() -> None:
    # Ten tokens at 5 per second, the first due at 101: read at 103.
    assert reader_text_s(running(), 102.0) == pytest.approx(1.0)
    assert "the batch policy of a is unified: the least slack" in said(running())
    assert "its reader has text for 1.0s more: it may be on hold or preempted until then" in said(running())


def test_a_reader_that_waited_has_its_text_for_longer() -> None:
    late = running(met=False, late_by_s=0.5)
    assert reader_text_s(late, 102.0) == pytest.approx(1.5)


def test_a_reader_without_text_should_have_more() -> None:
    assert "its reader has read all text and waits for 2.0s" in said(running(), now_s=105.0)
    late = running(met=False, late_by_s=2.0)  # by now, since its next token is overdue
    assert reader_text_s(late, 105.0) == pytest.approx(-2.0)
    assert "its reader has read all text and waits for 2.0s" in said(late, now_s=105.0)


def test_before_the_first_token_the_reader_waits_for_that() -> None:
    assert "waits for the first token: due in 0.5s" in said(running(tokens=0), now_s=100.5)
    assert "waits for the first token: late by 1.0s" in said(running(tokens=0), now_s=102.0)


def test_a_time_per_token_is_a_reader_and_a_deadline_is_none() -> None:
    paced = running({"kind": "token", "ttft_ms": 1000, "tpot_ms": 200})
    assert reader_text_s(paced, 102.0) == pytest.approx(1.0)
    deadline = running({"kind": "deadline", "deadline_ms": 1000})
    assert reader_text_s(deadline, 102.0) is None
    assert "it has no reader; late by 1.0s" in said(deadline)
    first = {"kind": "token", "ttft_ms": 1000, "tpot_ms": None}
    assert "its first token is out, and no other counts" in said(running(first))
    assert "it has no reader; late by 1.0s" in said(running(first, tokens=0))
    assert "it has no objective: it runs in what others leave" in said(running({"kind": "batch"}))


def test_a_deadline_beside_the_first_token_or_a_reader_counts_too() -> None:
    """Such a request was said to have no further objective once its first token was out."""
    first = running({"kind": "token", "ttft_ms": 1000, "tpot_ms": None, "deadline_ms": 60_000})
    assert said(first).endswith("its first token is out\nits whole answer is due in 58s")
    read = running(READING | {"deadline_ms": 1500})
    assert said(read).endswith("preempted until then\nits whole answer is late by 0.5s")
    assert said(read, "andes").endswith("its whole answer is late by 0.5s, which andes does not weigh")
    assert "whole answer" not in said(running()) + said(running({"kind": "deadline", "deadline_ms": 1000}))


def test_what_holds_nothing_says_so_and_what_is_not_in_an_engine_says_nothing() -> None:
    assert "first come, first served" in said(running(), FCFS)
    assert said(running(status="queued")) == said(running(status="ended")) == said(running(), None) == ""
