"""Vectors of the token pacer, and a driver that asks the pacer when it wants to be asked."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from qlm.pacer.core.items import ItemPacer, Shape
from qlm.pacer.core.options import PacerOptions
from qlm.pacer.core.pacer import Pacer

VECTORS = Path(__file__).resolve().parents[2] / "pacer" / "vectors"

NAMES = {
    "rate": "rate",
    "maxLagMs": "max_lag_ms",
    "graphemesPerToken": "graphemes_per_token",
    "ttftMs": "ttft_ms",
    "readerTokensPerS": "reader_tokens_per_s",
}


ITEMS: Shape[dict[str, Any]] = Shape(
    lambda item: item["text"], lambda item, text: {**item, "text": text}, lambda item: item.get("key")
)
"""Items of `items.json`."""


class Released(NamedTuple):
    at_ms: float
    text: str


def cases(name: str) -> list[Any]:
    read: list[Any] = json.loads((VECTORS / f"{name}.json").read_text("utf-8"))["cases"]
    return read


def pacer_of(options: dict[str, Any]) -> Pacer:
    chosen = {NAMES[key]: value for key, value in options.items() if key != "startMs"}
    return Pacer(PacerOptions(**chosen), start_ms=options.get("startMs"))


def take(pacer: Pacer | ItemPacer[Any], step: dict[str, Any]) -> None:
    """Apply the action of a step; expectations are not looked at."""
    at_ms = step["at"]
    text_pacer = pacer.pacer if isinstance(pacer, ItemPacer) else pacer
    if "push" in step:
        pacer.push(step["push"], at_ms)
    if "close" in step:
        text_pacer.close(at_ms)
    if "end" in step:
        pacer.end(at_ms)
    if "flush" in step:
        pacer.flush(at_ms)
    if "passThrough" in step:
        text_pacer.pass_through(step["passThrough"], at_ms)


def paced(pacer: Pacer, pushes: list[tuple[float, str]]) -> list[Released]:
    """Push a text, end it, and ask at each time that the pacer names."""
    out: list[Released] = []
    for at_ms, text in pushes:
        while (wake_ms := pacer.wake_at) is not None and wake_ms < at_ms:
            out.append(Released(wake_ms, pacer.release(wake_ms)))
        pacer.push(text, at_ms)
        out.append(Released(at_ms, pacer.release(at_ms)))
    pacer.end(pushes[-1][0] if pushes else 0.0)
    while (wake_ms := pacer.wake_at) is not None:
        out.append(Released(wake_ms, pacer.release(wake_ms)))
    return [each for each in out if each.text]
