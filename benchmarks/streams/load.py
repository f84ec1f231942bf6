"""Loads of streams: so many at nearly the same time, or so many per second."""

import random
import re
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.load import poisson_arrivals

STARTS_PER_S: Final = 500.0
"""Rate at which the streams of a burst start."""

PROMPT_TOKENS: Final = 16
TEXT, CHAT, CALL = "text", "chat", "call"
KINDS: Final = (TEXT, CHAT, CALL)
"""Completions; chats of plain text; chats whose answer calls a tool, made by the render tier."""

_TEXTS: Final = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
_WEATHER: Final = {"type": "function", "function": {"name": "weather", "parameters": _TEXTS}}
_LETTERS: Final = (97, 122)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Streams of one measurement.

    Attributes:
        name: `200x200` (streams x tokens) or `20/s:32` (rate of Poisson arrivals and tokens), perhaps with a
            kind behind it.
        kind: One of KINDS.
        tokens: Tokens of each answer; those of a call are what its JSON has.
        streams: Streams of a burst; 0 for an open loop.
        rate_rps: Arrivals per second of an open loop; 0 for a burst.
    """

    name: str
    kind: str = TEXT
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
        more = {"model": model, "temperature": 0, "stream": True}
        if self.kind == CALL:
            more |= {
                "tools": [_WEATHER],
                "tool_choice": "required",
                "stream_options": {"include_usage": True},
            }
        else:
            more |= {"max_tokens": self.tokens, "ignore_eos": True}
        if self.kind == TEXT:
            return {"prompt": prompt, **more}
        return {"messages": [{"role": "user", "content": bytes(prompt).decode()}], **more}


def parse_load(text: str) -> Load:
    """Read the name of a load.

    Raises:
        ValueError: It is none.
    """
    amount, _, kind = text.partition("+")
    kind = kind or ("" if "+" in text else TEXT)
    if kind in KINDS and (found := re.fullmatch(r"(\d+)x(\d+)", amount)):
        return Load(name=text, kind=kind, streams=int(found[1]), tokens=int(found[2]))
    if kind in KINDS and (found := re.fullmatch(r"(\d+(?:\.\d+)?)/s:(\d+)", amount)):
        return Load(name=text, kind=kind, rate_rps=float(found[1]), tokens=int(found[2]))
    raise ValueError(
        f"{text!r} is no load; expected STREAMSxTOKENS or RATE/s:TOKENS, perhaps with +chat, +call"
    )
