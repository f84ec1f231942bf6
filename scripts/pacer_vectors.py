"""Write `pacer/vectors/bursts.json` anew: `python -m scripts.pacer_vectors`.

The Python pacer releases drawn texts, asked at the frames of a screen. Each step is one line, so that a case
can be followed by hand.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from qlm.pacer.core.options import PacerOptions
from qlm.pacer.core.pacer import Pacer

PATH: Final = Path(__file__).resolve().parents[1] / "pacer" / "vectors" / "bursts.json"

CASES: Final = 40
SEED: Final = 20
FRAMES_MS: Final = (1000 / 60, 1000 / 144, 50.0, 250.0)

PIECES: Final = (
    " the", " model", " an", "swer", "ing", ".", "\n\n", " ", " 3.14", "-", " caf", "e\u0301", " 你好", "。",
    " 👩", "\u200d", "💻", " 🇩", "🇪", " 한", "글", " internationalization", "\r\n", " don", "'t", " ไทย",
)  # fmt: skip

OPTIONS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"rate": 3.3},
    {"rate": 20, "maxLagMs": 150},
    {"maxLagMs": 120, "readerTokensPerS": 10},
    {"graphemesPerToken": 2, "ttftMs": 100, "startMs": -400},
)


def options_of(chosen: dict[str, Any]) -> PacerOptions:
    """Return the options of a case."""
    return PacerOptions(
        rate=chosen.get("rate", "auto"),
        max_lag_ms=chosen.get("maxLagMs"),
        graphemes_per_token=chosen.get("graphemesPerToken", 4.0),
        ttft_ms=chosen.get("ttftMs", 1000.0),
        reader_tokens_per_s=chosen.get("readerTokensPerS"),
    )


def pushes(rng: random.Random) -> Iterator[tuple[int, str]]:
    """Yield times and texts: tokens, bursts and pauses, on whole milliseconds."""
    at_ms = 0
    for _ in range(rng.randint(3, 14)):
        at_ms += rng.choice((0, 5, 20, 35, 60, 180, 400, 1500))
        tokens = rng.choice((1, 1, 1, 2, 12))
        yield at_ms, "".join(rng.choice(PIECES) for _ in range(tokens))


def case_of(number: int) -> dict[str, Any]:
    """Return a case: its pushes, what is released at each frame, and when the pacer asks to be woken."""
    rng = random.Random(f"{SEED} {number}")
    options, frame_ms = OPTIONS[number % len(OPTIONS)], rng.choice(FRAMES_MS)
    pacer = Pacer(options_of(options), start_ms=options.get("startMs"))
    steps: list[dict[str, Any]] = []
    frame = 0

    def show_until(until_ms: float) -> None:
        nonlocal frame
        while frame * frame_ms < until_ms and not pacer.done:
            at_ms = frame * frame_ms
            if text := pacer.release(at_ms):
                steps.append({"at": at_ms, "release": text, "wakeAt": pacer.wake_at})
            frame += 1

    at_ms = 0
    for at_ms, text in pushes(rng):
        show_until(at_ms)
        pacer.push(text, at_ms)
        steps.append({"at": at_ms, "push": text, "wakeAt": pacer.wake_at})
    show_until(at_ms)
    pacer.end(at_ms)
    steps.append({"at": at_ms, "end": True, "wakeAt": pacer.wake_at})
    show_until(at_ms + 60_000)
    got = pacer.report()
    names = ("graphemes", "firstWaitMs", "idleMs", "stalls", "qoeStar", "addedLagMs")
    report = dict(zip(names, got, strict=True))
    return {"name": f"case {number}", "options": options, "steps": steps, "report": report}


def content() -> str:
    """Return the file."""
    cases = []
    for number in range(CASES):
        case = case_of(number)
        steps = ",\n        ".join(json.dumps(step) for step in case["steps"])
        cases.append(
            f'    {{\n      "name": "{case["name"]}",\n      "options": {json.dumps(case["options"])},\n'
            f'      "steps": [\n        {steps}\n      ],\n'
            f'      "report": {json.dumps(case["report"])}\n    }}'
        )
    about = "Drawn texts, released at the frames of a screen; written by scripts/pacer_vectors.py."
    return f'{{\n  "about": "{about}",\n  "cases": [\n' + ",\n".join(cases) + "\n  ]\n}\n"


if __name__ == "__main__":
    PATH.write_text(content(), "utf-8")
