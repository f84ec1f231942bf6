"""Characters whose halves come apart, as JSON of a server in JavaScript has them."""

import json
from typing import Any

import pytest

from qlm.pacer.core.items import ItemPacer
from qlm.pacer.core.pacer import Pacer
from support.pacing import ITEMS

FACE = "\U0001f600"
HIGH, LOW = "\ud83d", "\ude00"


def together(*items: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what comes out of items that come together."""
    pacer = ItemPacer(Pacer(), ITEMS)
    for item in items:
        pacer.push(item, 0)
    pacer.end(0)
    got = pacer.release(100_000)
    assert pacer.done
    return got


def test_half_a_character_is_never_shown_until_its_other_half_comes() -> None:
    """It was shown, and both together were no character: to print them was an error."""
    chunks = [json.loads(part) for part in (r'"hi \ud83d"', r'"\ude00 x"')]
    pacer = Pacer()
    pacer.push(chunks[0], 0)
    assert "".join(pacer.release(at) for at in (0, 100, 1000)) == "hi "
    assert pacer.wake_at is None
    pacer.flush(1500)
    assert pacer.release(1500) == ""
    pacer.push(chunks[1], 2000)
    pacer.end(2000)
    assert pacer.release(3000) == FACE + " x"
    assert pacer.report().graphemes == 6


@pytest.mark.parametrize("chunks", [[HIGH], ["a" + HIGH, "b"], [LOW, HIGH]])
def test_a_half_without_the_other_one_is_kept_as_it_is(chunks: list[str]) -> None:
    pacer = Pacer()
    for chunk in chunks:
        pacer.push(chunk, 0)
    pacer.end(0)
    assert pacer.release(10_000) == "".join(chunks)
    assert pacer.done


def test_half_a_character_waits_past_an_item_without_text_and_past_another_text() -> None:
    assert together({"text": f"ok {HIGH}"}, {"text": ""}, {"text": None}, {"text": f"{LOW}!"}) == [
        {"text": "ok "},
        {"text": ""},
        {"text": None},
        {"text": f"{FACE}!"},
    ]
    apart = [{"text": HIGH, "key": "x"}, {"text": HIGH, "key": "y"}, {"text": LOW, "key": "x"}]
    assert together(*apart) == [{"text": FACE, "key": "x"}, {"text": HIGH, "key": "y"}]
    assert together(*apart[:2]) == apart[:2]
