"""The vectors of `pacer/vectors`, which the npm package runs as well."""

from typing import Any

import pytest

from qlm.pacer.core.graphemes import graphemes
from qlm.pacer.core.items import ItemPacer
from qlm.pacer.core.pacer import Pacer
from support.pacing import ITEMS, cases, pacer_of, take

CASES = [(name, case) for name in ("by_hand", "bursts") for case in cases(name)]
ITEM_CASES = cases("items")


def run(pacer: Pacer | ItemPacer[Any], steps: list[dict[str, Any]]) -> None:
    for number, step in enumerate(steps):
        where = f"step {number}: {step}"
        take(pacer, step)
        if "release" in step:
            assert pacer.release(step["at"]) == step["release"], where
        if "wakeAt" in step:
            assert (pacer.wake_at is None) == (step["wakeAt"] is None), where
            assert (pacer.wake_at or 0) == pytest.approx(step["wakeAt"] or 0, rel=1e-12), where
        if "done" in step:
            assert pacer.done is step["done"], where


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name}: {case['name']}" for name, case in CASES])
def test_vector(name: str, case: dict[str, Any]) -> None:
    pacer = pacer_of(case.get("options", {}))
    run(pacer, case["steps"])
    if "report" in case:
        report = pacer.report()
        got = [report.graphemes, report.first_wait_ms, report.idle_ms, report.stalls, report.qoe_star]
        names = ["graphemes", "firstWaitMs", "idleMs", "stalls", "qoeStar"]
        assert got == pytest.approx([case["report"][each] for each in names], rel=1e-12)
        assert report.added_lag_ms == pytest.approx(case["report"]["addedLagMs"], rel=1e-12)


@pytest.mark.parametrize("case", ITEM_CASES, ids=[case["name"] for case in ITEM_CASES])
def test_vector_of_items(case: dict[str, Any]) -> None:
    run(ItemPacer(pacer_of(case.get("options", {})), ITEMS), case["steps"])


@pytest.mark.parametrize(("text", "expected"), cases("graphemes"))
def test_graphemes(text: str, expected: list[str]) -> None:
    assert graphemes(text) == expected
    assert "".join(expected) == text
