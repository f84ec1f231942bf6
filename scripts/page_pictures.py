"""Take the pictures of the live page: `make pictures` writes docs/pictures/live-page-{light,dark}.png.

A busy emulated cluster runs at real speed. Its load has a fixed seed; times differ a little each run.
"""

import contextlib
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
from PIL import Image

from support.chromium import Chromium, chromium
from support.qlm_process import QlmProcess, emulated, serving

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs/pictures"

MODELS: Final = ("llama-3-8b", "mistral-7b", "vicuna-13b")
INSTANCES: Final = (
    ("a10-0", "A10", MODELS[:2]),
    ("a100-0", "A100", MODELS),
    ("a100-1", "A100", MODELS[1:]),
)
OBJECTIVES: Final[tuple[dict[str, Any], ...]] = (
    {"service_tier": "flex"},
    {"slo": {"deadline_ms": 30_000}},
    {"slo": {"deadline_ms": 90_000}},
    {"slo": {"deadline_ms": 240_000}},
    {"slo": {"ttft_ms": 10_000, "tpot_ms": 100}},
)

SEQS_MAX: Final = 16
"""Largest batch: small, so that requests wait."""

FIRST: Final = 150
"""Requests at the start."""

RATE_PER_S: Final = 6.0
GROUPS_MIN: Final = 14
CLASSES_MIN: Final = 6
"""Classes with answers."""

WAIT_MAX_S: Final = 240.0
WIDTH, HEIGHT = 1440, 1000
PALETTE: Final = 128
"""Colours of a picture, so that its file is small."""


def main() -> int:
    """Take the pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    config = emulated(*MODELS, time_scale=1.0)
    config["instances"] = [
        {"id": id, "accelerator": kind, "models": list(models), "seqs_max": SEQS_MAX}
        for id, kind, models in INSTANCES
    ]
    with serving(config) as served, _load(served), chromium() as page:
        page.size(WIDTH, HEIGHT)
        page.media(prefers_color_scheme="light")
        page.open(f"{served.admin_url}/ui")
        page.until(
            f"parseInt(document.getElementById('summary').innerText) >= {GROUPS_MIN}"
            " && document.getElementById('summary').innerText.includes('expected in time')"
            f" && document.querySelectorAll('#classes .gauge').length >= {CLASSES_MIN}",
            WAIT_MAX_S,
        )
        _explain_last_group(page)
        for colours in ("light", "dark"):
            page.media(prefers_color_scheme=colours)
            page.until("new Promise((done) => setTimeout(() => done(true), 500))")
            path = FOLDER / f"live-page-{colours}.png"
            page.picture(path)
            Image.open(path).convert("RGB").quantize(PALETTE).save(path, optimize=True)
            print(f"written: docs/pictures/live-page-{colours}.png")
    return 0


def _explain_last_group(page: Chromium) -> None:
    page.run("document.getElementById('chart').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "End", "ArrowLeft", "Enter"):
        page.press(key)
    page.until("document.getElementById('panel-body').innerText.includes('waits for')")
    page.run("document.getElementById('chart').focus({preventScroll: true})")


@contextlib.contextmanager
def _load(served: QlmProcess) -> Iterator[None]:
    """Send requests without waiting for their answers, until the end."""
    ended = threading.Event()
    sender = threading.Thread(target=_send, args=(served.url, ended))
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join()


def _send(url: str, ended: threading.Event) -> None:
    drawn, sent = random.Random(5), 0
    with httpx.Client(base_url=url, timeout=60) as client:
        while not ended.is_set():
            body = {
                "model": drawn.choice(MODELS),
                "prompt": "x" * drawn.choice((300, 900, 2400)),
                "max_tokens": drawn.choice((300, 500, 800)),
                "ignore_eos": True,
                **drawn.choice(OBJECTIVES),
            }
            client.post("/v1/completions", json=body, headers={"prefer": "respond-async"})
            sent += 1
            if sent > FIRST:
                time.sleep(drawn.expovariate(RATE_PER_S))


if __name__ == "__main__":
    sys.exit(main())
