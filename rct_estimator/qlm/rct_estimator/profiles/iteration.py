"""Duration of one iteration of continuous batching, from the coefficients of a profile."""

from bisect import bisect_right
from dataclasses import dataclass, fields
from functools import lru_cache
from math import inf
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.fields import check_positive

FloatArray = npt.NDArray[np.float64]

_FAR_TOKENS: Final = 1 << 20
"""Last point of a table made from a line; beyond it the line goes on anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """The four coefficients of equation 14 or 15 of SLO-aware annealing, in milliseconds.

    They are not negative and `delta` is positive, so that no iteration takes no time and a larger
    batch is never faster.

    Attributes:
        alpha: Time per request and token.
        beta: Time per request.
        gamma: Time per token of the (average) request.
        delta: Time of the iteration itself.
    """

    alpha: float
    beta: float
    gamma: float
    delta: float

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma", "delta"):
            check_positive(name, getattr(self, name), zero=name != "delta")

    def ms(self, batch: float, tokens: float) -> float:
        """Return the milliseconds for `batch` requests of `tokens` tokens each."""
        return self.alpha * batch * tokens + self.beta * batch + self.gamma * tokens + self.delta


@dataclass(frozen=True, slots=True)
class Equations:
    """Equations 14 (`prefill`) and 15 (`decode`) of SLO-aware annealing, from profiles of version 1."""

    prefill: Coefficients
    decode: Coefficients


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTime:
    """Coefficients of the duration of an iteration, milliseconds.

        host + linear(N) + kv C + sequence B + square S + admission A

    N: all tokens computed, decodes included. C: context of the decodes. B: sequences. S: sum over the chunks
    of prompts of new (position + new / 2), the pairs of tokens that causal attention compares. A: requests
    that it admits to the batch for the first time.

    One pass over the weights serves all N tokens, so `linear` has a floor while weights are read, a kink
    where computing takes longer than reading, and a slope after it. Below its first point it is constant;
    beyond its last it continues with its last slope.

    Attributes:
        host_ms: Time of the iteration on the host that the accelerator does not hide.
        linear_ms: Points (tokens, ms): tokens ascend, ms do not descend; at least one.
        kv_ms: Time per token of context that a decode reads.
        kv_mixed_ms: The same in iterations that compute prompts too; None for the same value.
        sequence_ms: Time per sequence.
        square_ms: Time per pair of tokens of a prompt.
        admission_ms: Time of the engine per request, whatever its length: reading it, and keeping its state.
    """

    host_ms: float
    linear_ms: tuple[tuple[float, float], ...]
    kv_ms: float
    kv_mixed_ms: float | None = None
    sequence_ms: float = 0.0
    square_ms: float = 0.0
    admission_ms: float = 0.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "linear_ms" and value is not None:
                check_positive(each.name, value, zero=True)
        if not self.linear_ms:
            raise InvalidValueError("linear_ms", [], "at least one point [tokens, ms]")
        before = (0.0, 0.0)
        for number, (tokens, ms) in enumerate(self.linear_ms):
            check_positive(f"linear_ms.{number}.tokens", tokens)
            check_positive(f"linear_ms.{number}.ms", ms)
            if tokens <= before[0] or ms < before[1]:
                raise InvalidValueError(
                    f"linear_ms.{number}", [tokens, ms], "more tokens than the point before, and no less time"
                )
            before = tokens, ms

    @classmethod
    def of_equations(cls, equations: Equations) -> "IterationTime":
        """Read version 1: `linear` is the larger of the decode constant and the line of one prompt.

        `gamma` of the decode equation, a cost per token of the average request, has no place here.
        """
        prefill, decode = equations.prefill, equations.decode
        slope, start = prefill.alpha + prefill.gamma, prefill.delta + prefill.beta
        far = (float(_FAR_TOKENS), start + slope * _FAR_TOKENS)
        first = start + slope
        points: tuple[tuple[float, float], ...]
        if first >= decode.delta:
            points = ((1.0, first), far)
        elif far[1] <= decode.delta:
            points = ((1.0, decode.delta), (far[0], decode.delta))
        else:
            points = ((1.0, decode.delta), ((decode.delta - start) / slope, decode.delta), far)
        return cls(host_ms=0.0, linear_ms=points, kv_ms=decode.alpha, sequence_ms=decode.beta)

    @classmethod
    def constant(cls, ms: float) -> "IterationTime":
        """Return iterations that take `ms` whatever they compute."""
        return cls(host_ms=0.0, linear_ms=((1.0, ms),), kv_ms=0.0)

    def linear(self, tokens: float) -> float:
        """Return the time of the linear layers for that many tokens, milliseconds."""
        points = self.linear_ms
        at = bisect_right(points, (tokens, inf))
        if at == 0 or len(points) == 1:
            return points[0][1]
        last = min(at, len(points) - 1)
        (x0, y0), (x1, y1) = points[last - 1], points[last]
        return y0 + (y1 - y0) * (tokens - x0) / (x1 - x0)

    def linears(self, tokens: npt.ArrayLike) -> FloatArray:
        """Return `linear` elementwise."""
        at = np.asarray(tokens, dtype=np.float64)
        xs, ys, beyond = _arrays(self.linear_ms)
        return np.asarray(np.interp(at, xs, ys) + beyond * np.maximum(0.0, at - xs[-1]), dtype=np.float64)

    def ms(
        self,
        *,
        tokens: float,
        context_tokens: float,
        sequences: float,
        mixed: bool,
        pairs: float = 0.0,
        admitted: float = 0.0,
    ) -> float:
        """Return the duration of an iteration, milliseconds.

        Args:
            tokens: All tokens computed: N.
            context_tokens: Context of its decodes, in total: C.
            sequences: Decodes and chunks of prompts: B.
            mixed: It computes prompts.
            pairs: `pairs_of` its chunks, in total: S.
            admitted: Requests that it admits for the first time: A.
        """
        kv_ms = self.kv_beside_prompts_ms if mixed else self.kv_ms
        fixed = self.host_ms + self.linear(tokens) + self.admission_ms * admitted
        return fixed + kv_ms * context_tokens + self.sequence_ms * sequences + self.square_ms * pairs

    @property
    def kv_beside_prompts_ms(self) -> float:
        """Time per token of context in an iteration that computes prompts, milliseconds."""
        return self.kv_ms if self.kv_mixed_ms is None else self.kv_mixed_ms

    @property
    def stated(self) -> tuple[str, ...]:
        """Names of the coefficients that are more than what leaving them out means.

        Zero does, except for `kv_mixed_ms`, which counts as `kv_ms` where it is left out.
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return tuple(
            name for name, value in values.items() if value or (name == "kv_mixed_ms" and value == 0)
        )

    @property
    def last_slope_ms(self) -> float:
        """Time of one more token in a large batch, milliseconds."""
        if len(self.linear_ms) == 1:
            return 0.0
        (x0, y0), (x1, y1) = self.linear_ms[-2:]
        return (y1 - y0) / (x1 - x0)

    def scaled(self, factor: float) -> "IterationTime":
        """Return all coefficients multiplied by `factor`."""
        return IterationTime(
            host_ms=self.host_ms * factor,
            linear_ms=tuple((tokens, ms * factor) for tokens, ms in self.linear_ms),
            kv_ms=self.kv_ms * factor,
            kv_mixed_ms=None if self.kv_mixed_ms is None else self.kv_mixed_ms * factor,
            sequence_ms=self.sequence_ms * factor,
            square_ms=self.square_ms * factor,
            admission_ms=self.admission_ms * factor,
        )


@lru_cache(maxsize=256)
def _arrays(points: tuple[tuple[float, float], ...]) -> tuple[FloatArray, FloatArray, float]:
    """Return the columns of a table, and its last slope."""
    xs, ys = np.array(points).T
    return xs, ys, (ys[-1] - ys[-2]) / (xs[-1] - xs[-2]) if len(xs) > 1 else 0.0


def pairs_of(new: float, position: float = 0.0) -> float:
    """Return the pairs of tokens that causal attention compares for `new` tokens after `position` others."""
    return new * (position + new / 2)
