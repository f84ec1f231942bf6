"""Measurements of vLLM 0.32 on an H100: iterations that gave constants, and logs that judge the profile.

Llama-3-8B with random weights in bfloat16, with CUDA graphs and asynchronous scheduling as by default, on one
H100 80GB HBM3 (driver 580.159.04). The logs come from `qlm bench` on the same machine, prompts and answers of
lengths within 75 % of the mean.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import orjson

from qlm.cli.profiling.request_log import read_request_log
from qlm.rct_estimator.profiles.points import FitPoint
from qlm.simulator.evaluation.fidelity import LevelFidelity, fidelity
from scripts.shipped_profiles.profiles import built_profile

FOLDER: Final = Path(__file__).parent / "measured"
MODEL: Final = "llama-3-8b"

LOGS: Final[Mapping[str, str]] = {
    "3-2048-128": "3/s, prompts of 2048, answers of 128 tokens",
    "6-2048-128": "6/s, prompts of 2048, answers of 128 tokens",
    "9-2048-128": "9/s, prompts of 2048, answers of 128 tokens",
    "20-256-192": "20/s, prompts of 256, answers of 192 tokens",
    "inf-2048-128": "all at once, prompts of 2048, answers of 128 tokens",
    "40-512-96": "40/s, prompts of 512, answers of 96 tokens, another start",
    "inf-256-192": "all at once, prompts of 256, answers of 192 tokens, another start",
}
"""What was sent, by the name of its file; the last two came from another start of the engine."""


def iterations() -> tuple[FitPoint, ...]:
    """Return the timed iterations from which constants of the H100 came."""
    text = (FOLDER / f"h100-{MODEL}-points.json").read_bytes()
    return tuple(FitPoint(*point) for point in orjson.loads(text))


@cache
def judged(name: str) -> LevelFidelity:
    """Replay a log with the shipped profile."""
    log = read_request_log(FOLDER / f"h100-{MODEL}-{name}.csv")
    (level,) = fidelity(log, built_profile(MODEL, "H100", 1))
    return level
