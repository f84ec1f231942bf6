"""Log of requests that an engine has served: what was asked of it, and when it answered."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.simulator.prefixes import UNSHARED
from qlm.simulator.scenario import IntArray
from qlm.simulator.workload.trace import Labels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestLog:
    """Requests in order of arrival, all of which have ended; arrays have shape (requests,).

    Attributes:
        name: Name of the file, without its folder.
        sha256: Digest of its bytes, hexadecimal.
        lines: Line of each request in the file, from 1.
        arrival_ns: Arrival at the engine, nanoseconds since the first arrival of the log.
        prompt_tokens: 1 or more.
        output_tokens: Tokens of the answer; 1 or more.
        first_token_ns: First token, on the clock of `arrival_ns`; not before the arrival.
        end_ns: Last token; not before the first.
        level: Load level of each request; None if the log names none.
        prefix: Number of the prefix that a request shares with others of the same number, or UNSHARED.
        prefix_tokens: Its length; at most the prompt's.
    """

    name: str
    sha256: str
    lines: IntArray
    arrival_ns: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    first_token_ns: IntArray
    end_ns: IntArray
    level: Labels | None = None
    prefix: IntArray
    prefix_tokens: IntArray

    def __post_init__(self) -> None:
        self._refuse(np.diff(self.arrival_ns, prepend=0) < 0, "arrival", "not before the line above")
        self._refuse(self.prompt_tokens < 1, "prompt_tokens", "1 or more")
        self._refuse(self.output_tokens < 1, "output_tokens", "1 or more, as an answered request has")
        self._refuse(self.first_token_ns < self.arrival_ns, "first token", "not before the arrival")
        self._refuse(self.end_ns < self.first_token_ns, "end", "not before the first token")
        long = (self.prefix_tokens < 0) | (self.prefix_tokens > self.prompt_tokens)
        self._refuse(long, "prefix_tokens", "0 to the length of the prompt")
        nameless = (self.prefix == UNSHARED) & (self.prefix_tokens > 0)
        self._refuse(nameless, "prefix_tokens", "0 for a request without the id of a prefix")

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def ttft_s(self) -> npt.NDArray[np.float64]:
        """Time to the first token, seconds."""
        return np.asarray((self.first_token_ns - self.arrival_ns) / 1e9)

    @property
    def e2e_s(self) -> npt.NDArray[np.float64]:
        """Time to the last token, seconds."""
        return np.asarray((self.end_ns - self.arrival_ns) / 1e9)

    def at(self, rows: npt.NDArray[np.int64]) -> "RequestLog":
        """Select rows, in order of arrival; times count from the first of them."""
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NO_COLUMNS}
        chosen = {name: column[rows] for name, column in columns.items()}
        start_ns = chosen["arrival_ns"][0]
        chosen |= {name: chosen[name] - start_ns for name in ("arrival_ns", "first_token_ns", "end_ns")}
        return replace(self, **chosen, level=self.level and self.level.at(rows))

    def levels(self) -> Iterator[tuple[str, "RequestLog"]]:
        """Yield each load level with its requests, sorted by name (numbers by value)."""
        if self.level is None:
            yield "all", self
            return
        for name in sorted(self.level.present(), key=_number_first):
            code = self.level.names.index(name)
            yield name, self.at(np.flatnonzero(self.level.codes == code))

    def _refuse(self, bad: npt.NDArray[np.bool_], what: str, expected: str) -> None:
        if bad.any():
            row = int(np.argmax(bad))
            columns = {"arrival": self.arrival_ns, "first token": self.first_token_ns, "end": self.end_ns}
            shown = f"{columns[what][row] / 1e9:.9g} s" if what in columns else int(getattr(self, what)[row])
            raise InvalidValueError(f"{self.name}:{self.lines[row]}: {what}", shown, expected)


_NO_COLUMNS: Final = ("name", "sha256", "level")


def _number_first(name: str) -> tuple[bool, float, str]:
    try:
        return False, float(name.rstrip("%")), name
    except ValueError:
        return True, 0.0, name
