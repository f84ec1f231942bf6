"""Readers and objectives of a benchmark, as its options write them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from qlm.cli.bench.record import Sent
from qlm.domain.errors import InvalidValueError
from qlm.domain.streaming.reader import READING_TOKENS_PER_S, Reader
from qlm.domain.streaming.timeline import LATE_S, Timeline

TTFT_S: Final = 1.0
"""First token that a reader expects by default, as in Andes' evaluation."""

READERS: Final = tuple(Reader(TTFT_S, pace) for pace in (READING_TOKENS_PER_S, 10.0, 20.0))
"""Readers of a report: reading (Andes, table 2), and smooth goodput's paces: 10 in section 5.2, else 20."""

SLO_NAMES: Final = ("ttft", "pace", "deadline")
GOODPUT_NAMES: Final = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Slo:
    """Objective of each request; None for what it leaves open.

    Attributes:
        ttft_ms: First token.
        tokens_per_s: Pace from then on; needs `ttft_ms`.
        deadline_ms: The whole answer.
    """

    ttft_ms: float | None = None
    tokens_per_s: float | None = None
    deadline_ms: float | None = None

    @property
    def reader(self) -> Reader | None:
        """The reader that it describes."""
        if self.ttft_ms is None or self.tokens_per_s is None:
            return None
        return Reader(self.ttft_ms / 1000, self.tokens_per_s)

    def body(self) -> dict[str, float]:
        """Return the field `slo` of QLM's API."""
        given = {
            "ttft_ms": self.ttft_ms,
            "tokens_per_s": self.tokens_per_s,
            "deadline_ms": self.deadline_ms,
        }
        return {name: value for name, value in given.items() if value is not None}

    def headers(self) -> dict[str, str]:
        """Return the headers of QLM's API."""
        names = {
            "ttft_ms": "x-slo-ttft-ms",
            "tokens_per_s": "x-slo-tokens-per-s",
            "deadline_ms": "x-qlm-deadline-ms",
        }
        # All digits: the server judges by what it reads.
        return {names[name]: repr(value).removesuffix(".0") for name, value in self.body().items()}

    def met(self, sent: Sent) -> bool:
        """Return whether a request was answered within all of it, from its scheduled arrival."""
        if not sent.answered:
            return False
        first_s, last_s = sent.first_token_s - sent.scheduled_s, sent.last_token_s - sent.scheduled_s
        in_time = [
            self.ttft_ms is None or first_s <= self.ttft_ms / 1000 + LATE_S,
            self.deadline_ms is None or last_s <= self.deadline_ms / 1000 + LATE_S,
        ]
        if self.reader is not None:
            in_time = [in_time[1], timeline_of(sent, self.reader).in_time]
        return all(in_time)


def timeline_of(sent: Sent, reader: Reader) -> Timeline:
    """Return the timeline of an answer from its scheduled arrival; a chunk's tokens share its time."""
    timeline = Timeline(reader)
    for chunk in sent.chunks:
        timeline.deliver(chunk.tokens, chunk.at_s - sent.scheduled_s)
    return timeline


def parse_slo(words: Iterable[str]) -> Slo | None:
    """Read `ttft:MS pace:TOKENS_PER_S deadline:MS`; None without any word.

    Raises:
        InvalidValueError: A word is not of this form, or there is a pace without a TTFT.
    """
    given = _pairs("--slo", words, SLO_NAMES)
    if not given:
        return None
    if "pace" in given and "ttft" not in given:
        raise InvalidValueError("--slo", f"pace:{given['pace']:g}", "a ttft beside a pace")
    return Slo(given.get("ttft"), given.get("pace"), given.get("deadline"))


def parse_goodput(words: Iterable[str]) -> dict[str, float]:
    """Read `ttft:MS tpot:MS e2el:MS`, as `vllm bench serve --goodput` does.

    Raises:
        InvalidValueError: A word is not of this form.
    """
    return dict(_pairs("--goodput", words, GOODPUT_NAMES))


def parse_reader(text: str) -> Reader:
    """Read `PACE` or `PACE:TTFT_MS`, tokens per second and milliseconds.

    Raises:
        InvalidValueError: It is not of this form.
    """
    pace, _, ttft = text.partition(":")
    return Reader(_positive("--reader", ttft) / 1000 if ttft else TTFT_S, _positive("--reader", pace))


def _pairs(option: str, words: Iterable[str], names: tuple[str, ...]) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for word in (each for text in words for each in text.split()):
        name, colon, value = word.partition(":")
        if not colon or name not in names:
            expected = f"NAME:NUMBER, the name one of {', '.join(names)}"
            raise InvalidValueError(option, word, expected)
        found[name] = _positive(f"{option} {name}", value)
    return found


def _positive(field: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidValueError(field, text, "a number above 0") from None
    if not 0 < value < float("inf"):
        raise InvalidValueError(field, text, "a number above 0")
    return value
