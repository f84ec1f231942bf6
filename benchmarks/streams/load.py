"""Loads of streams: so many at nearly the same time, or so many per second."""

import random
import re
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.load import poisson_arrivals

STARTS_PER_S: Final = 500.0
"""Rate at which the streams of a burst start."""

PROMPT_TOKENS: Final = 16
_LETTERS: Final = (97, 122)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Streams of one measurement.

    Attributes:
        name: `200x200` (streams x tokens) or `20/s:32` (rate of Poisson arrivals and tokens).
        tokens: Tokens of each answer.
        streams: Streams of a burst; 0 for an open loop.
        rate_rps: Arrivals per second of an open loop; 0 for a burst.
    """

    name: str
    tokens: int
    streams: int = 0
    rate_rps: float = 0.0

    def requests(self, model: str, seconds: float, seed: int) -> list[tuple[float, dict[str, Any]]]:
        """Draw the time and body of each request; equal seeds give equal ones.

        Args:
            model: Model to ask for.
            seconds: Length of an open loop.
            seed: Of times and prompts.
        """
        times = [n / STARTS_PER_S for n in range(self.streams)]
        if self.rate_rps:
            times = poisson_arrivals(self.rate_rps, seconds, seed)
        letters = random.Random(f"prompts {self.name} {seed}")
        return [(at_s, self._body(model, letters)) for at_s in times]

    def _body(self, model: str, letters: random.Random) -> dict[str, Any]:
        prompt = [letters.randint(*_LETTERS) for _ in range(PROMPT_TOKENS)]
        more = {"max_tokens": self.tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        return {"model": model, "prompt": prompt, **more}


def parse_load(text: str) -> Load:
    """Read the name of a load.

    Raises:
        ValueError: It is none.
    """
    if found := re.fullmatch(r"(\d+)x(\d+)", text):
        return Load(name=text, streams=int(found[1]), tokens=int(found[2]))
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)/s:(\d+)", text):
        return Load(name=text, rate_rps=float(found[1]), tokens=int(found[2]))
    raise ValueError(f"{text!r} is no load; expected STREAMSxTOKENS or RATE/s:TOKENS")
