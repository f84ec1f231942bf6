"""Traces of any format: lengths and, if present, arrivals, models, tenants, classes and prefixes."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.simulator.prefixes import PrefixIds
from qlm.simulator.scenario import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Names of rows, numbered.

    Attributes:
        codes: Index into `names`, shape (rows,).
        names: Distinct names, sorted.
    """

    codes: IntArray
    names: tuple[str, ...]

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Labels":
        """Number the names of rows."""
        names = tuple(sorted(set(texts)))
        code = {name: index for index, name in enumerate(names)}
        return cls(np.fromiter((code[each] for each in texts), np.int64, len(texts)), names)

    def at(self, rows: npt.NDArray[np.int64]) -> "Labels":
        """Select rows, in the given order."""
        return Labels(self.codes[rows], self.names)

    def present(self) -> list[str]:
        """List the names that occur in rows."""
        return [self.names[code] for code in np.unique(self.codes).tolist()]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Rows of a trace in order of arrival, and of content for equal times.

    So the order of such rows in a file has no effect.

    Attributes:
        prompt_tokens: 1 or more, shape (rows,).
        output_tokens: 1 or more, shape (rows,).
        arrival_ns: Nanoseconds from the start of the trace, never decreasing; None without times.
        model: Model names; None without them.
        tenant: Tenant names; None without them.
        slo_class: Class names; None without them.
        prefixes: Ids of the prompt's first blocks by row, see `prefixes.PrefixIds`; empty without them.
        prefix_tokens: Tokens that the ids of a row cover; None for whole blocks.
        dropped_ns: Arrivals of the dropped rows without output tokens; 0 for each without times.
    """

    path: Path
    prompt_tokens: IntArray
    output_tokens: IntArray
    arrival_ns: IntArray | None = None
    model: Labels | None = None
    tenant: Labels | None = None
    slo_class: Labels | None = None
    prefixes: PrefixIds = ()
    prefix_tokens: IntArray | None = None
    dropped_ns: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def zero_output_dropped(self) -> int:
        """Number of dropped rows without output tokens."""
        return len(self.dropped_ns)

    def at(self, rows: npt.NDArray[np.int64]) -> "Trace":
        """Select rows, in the given order."""
        return replace(
            self,
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            arrival_ns=None if self.arrival_ns is None else self.arrival_ns[rows],
            model=self.model and self.model.at(rows),
            tenant=self.tenant and self.tenant.at(rows),
            slo_class=self.slo_class and self.slo_class.at(rows),
            prefixes=tuple(self.prefixes[row] for row in rows.tolist()) if self.prefixes else (),
            prefix_tokens=None if self.prefix_tokens is None else self.prefix_tokens[rows],
        )

    def canonical(self) -> "Trace":
        """Order rows of equal time by content; without times, the file order counts."""
        if self.arrival_ns is None:
            return self
        keys = [] if self.prefix_tokens is None else [self.prefix_tokens]
        keys += [ranks(self.prefixes)] if self.prefixes else []
        keys += [self.output_tokens, self.prompt_tokens]
        keys += [labels.codes for labels in (self.slo_class, self.tenant, self.model) if labels is not None]
        return self.at(np.lexsort([*keys, self.arrival_ns]))

    def window(self, from_s: float, duration_s: float | None) -> "Trace":
        """Select the rows that arrive within `duration_s` from `from_s` on; times then count from `from_s`.

        Raises:
            InvalidValueError: There is no such row, or the trace has no times.
        """
        if self.arrival_ns is None:
            raise InvalidValueError(str(self.path), "a trace without times", "one with times to cut a window")
        from_ns = round(from_s * 1e9)
        last = np.iinfo(np.int64).max if duration_s is None else from_ns + round(duration_s * 1e9)
        first_row, end_row = np.searchsorted(self.arrival_ns, [from_ns, last], side="left")
        if first_row == end_row:
            shown = f"no row from {from_s:g} s" + (f" for {duration_s:g} s" if duration_s else "")
            end_s = float(self.arrival_ns[-1]) / 1e9
            raise InvalidValueError(
                str(self.path), shown, f"a window that holds some; it ends at {end_s:g} s"
            )
        cut = self.at(np.arange(first_row, end_row))
        assert cut.arrival_ns is not None
        dropped_ns = self.dropped_ns[(self.dropped_ns >= from_ns) & (self.dropped_ns < last)]
        return replace(cut, arrival_ns=cut.arrival_ns - from_ns, dropped_ns=dropped_ns - from_ns)


def dropped_times(arrival_ns: IntArray | None, kept: IntArray, rows: int) -> IntArray:
    """Return the arrivals of all rows but the kept ones; 0 for each without times."""
    gone = np.ones(rows, dtype=np.bool_)
    gone[kept] = False
    times = np.zeros(rows, dtype=np.int64) if arrival_ns is None else arrival_ns
    return np.asarray(times[gone])


def ranks(prefixes: Sequence[tuple[int, ...]]) -> IntArray:
    """Return the rank of each prefix in sorted order, shape (prefixes,); equal ones have equal ranks."""
    rank = {prefix: index for index, prefix in enumerate(sorted(set(prefixes)))}
    return np.fromiter((rank[prefix] for prefix in prefixes), np.int64, len(prefixes))
