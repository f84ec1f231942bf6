"""Least work of requests: what any schedule must compute, and the time that an engine cannot do it in.

An iteration takes at least g(N) + sequence * O + what attention costs, for N computed tokens of which O give
an output. O is at most N and the places of the batch. A *cut* is a pair (plain, output) of seconds with
plain * (N - O) + output * O <= g(N) for all such N and O; so the time of any iterations is at least the sum
over requests of these prices. Each cut is a bound of its own, and none may be violated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.rct_estimator.profiles.profile import Profile

FloatArray = npt.NDArray[np.float64]

PLAIN_SHARES: Final = (1.0, 0.5, 0.0)
"""Prices of a plain token in the cuts, as shares of the least time per token of any iteration."""

ROUNDING: Final = 1 - 1e-9
"""Engines round times to whole ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Part of a request that must be computed within a window, seconds from the start.

    Attributes:
        begin_s: Earliest start.
        end_s: Latest end.
        plain: Tokens that give no output.
        outputs: Tokens that do, one per iteration.
        pairs: Pairs of tokens that attention compares for the prompt.
        context: Sum over the outputs of the tokens before them that are in no shared prefix.
        reading: Sum over the outputs behind the first of all tokens before them.
    """

    begin_s: float
    end_s: float
    plain: float
    outputs: float
    pairs: float
    context: float
    reading: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Least times of one model on one kind of instance, seconds.

    Attributes:
        plain: Per plain token, one price per cut.
        output: Per output, one price per cut.
        context: Per token of context of an output, one price per cut.
        sequence: Per output, in all cuts.
        pair: Per pair, in all cuts.
        reading: Per token of `Part.reading`, in all cuts.
        token: Least time of a token in any iteration.
        iteration: Shortest iteration.
    """

    plain: FloatArray
    output: FloatArray
    context: FloatArray
    sequence: float
    pair: float
    reading: float
    token: float
    iteration: float

    def of(self, part: Part) -> FloatArray:
        """Return the least work of a part, one value per cut."""
        common = self.sequence * part.outputs + self.pair * part.pairs + self.reading * part.reading
        return np.asarray(
            self.plain * part.plain + self.output * part.outputs + self.context * part.context + common
        )

    def alone_s(self, parts: Sequence[Part]) -> float:
        """Return the least time from the first iteration of a request to the end of its last part."""
        tokens = sum(part.plain for part in parts) + 1
        first_s = max(self.iteration, self.token * tokens) + self.pair * sum(part.pairs for part in parts)
        further = sum(part.outputs for part in parts) - 1
        return first_s + self.sequence + further * (self.iteration + self.sequence)


def prices(profile: Profile, *, seqs_max: int, kv_tokens: int) -> Prices:
    """Return the least times of an engine.

    Args:
        profile: Profile by which it runs.
        seqs_max: Places of its batch.
        kv_tokens: Size of its KV cache.
    """
    of = profile.iteration
    tokens = np.arange(1, max(profile.batched_tokens_max, seqs_max) + 1)
    g_s = ROUNDING * (of.host_ms + of.linears(tokens)) / 1e3
    least_s = float((g_s / tokens).min())
    plain = np.array([least_s * share for share in PLAIN_SHARES])
    places = np.minimum(seqs_max, tokens)
    output = plain + np.array([float(((g_s - each * tokens) / places).min()) for each in plain])
    scale = ROUNDING / 1e3
    return Prices(
        # The last cut: all outputs of an iteration have their context in the KV cache at once.
        plain=np.append(plain, 0.0),
        output=np.append(output, 0.0),
        context=np.append(np.zeros(len(plain)), float(g_s[0]) / (kv_tokens + profile.block_tokens)),
        sequence=scale * of.sequence_ms,
        pair=scale * of.square_ms,
        reading=scale * min(of.kv_ms, of.kv_beside_prompts_ms, of.square_ms),
        token=least_s,
        iteration=float(g_s[0]),
    )


def parts_of(
    *, begin_s: float, ends_s: tuple[float, float], prompt: int, shared: int, outputs: tuple[int, int]
) -> list[Part]:
    """Return what a request needs: its first `outputs[0]` tokens by `ends_s[0]`, all of them by `ends_s[1]`.

    Args:
        begin_s: Earliest start.
        ends_s: Latest end of the first outputs, and of all.
        prompt: Tokens of its prompt.
        shared: Those that a prefix cache may have.
        outputs: Number of first outputs, and of all.
    """
    known = min(shared, prompt - 1)
    found, before = [], 0
    for end_s, until in zip(ends_s, outputs, strict=True):
        if until <= before:
            continue
        numbers = np.arange(before, until)
        found.append(
            Part(
                begin_s=begin_s,
                end_s=end_s,
                plain=0 if before else prompt - known - 1,
                outputs=until - before,
                pairs=0 if before else (prompt**2 - known**2) / 2,
                context=float(np.maximum(0, prompt - known + numbers - 1).sum()),
                reading=float((prompt + numbers[numbers > 0] - 1).sum()),
            )
        )
        before = until
    return found
