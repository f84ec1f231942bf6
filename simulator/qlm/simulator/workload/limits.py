"""Limits of requests: the context of the model, and the answer length that the client allows."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from qlm.simulator.scenario import IntArray


class OverContext(StrEnum):
    """Treatment of a request whose prompt and answer exceed the context of its model."""

    CUT = "cut"
    """The prompt is cut first, down to half the context, then the answer."""
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitted:
    """Lengths after the limits.

    Attributes:
        kept: Remaining rows, shape (rows,).
        prompt_tokens: Prompt lengths of these rows.
        output_tokens: Answer lengths of these rows.
        prompts_cut: Number of shortened prompts.
        outputs_cut: Number of shortened answers.
        dropped: Number of dropped requests.
    """

    kept: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    prompts_cut: int
    outputs_cut: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthLimits:
    """Limits of a stream.

    Attributes:
        prompt_tokens_max: Longer prompts are cut to it; None for no limit.
        output_tokens_max: Longer answers are cut to it; None for no limit.
        over_context: Treatment of requests that exceed the context of their model.
    """

    prompt_tokens_max: int | None = None
    output_tokens_max: int | None = None
    over_context: OverContext = OverContext.CUT

    def fit(self, prompt: IntArray, output: IntArray, context: IntArray) -> Fitted:
        """Cut or drop requests that are too long.

        Args:
            prompt: Prompt lengths, shape (requests,).
            output: Answer lengths, shape (requests,).
            context: Context of each request's model, 2 or more, shape (requests,).
        """
        sent = _at_most(prompt, self.prompt_tokens_max)
        answered = _at_most(output, self.output_tokens_max)
        kept = np.arange(len(prompt))
        if self.over_context is OverContext.DROP:
            kept = np.flatnonzero(sent + answered <= context)
        else:
            sent = np.minimum(sent, np.maximum(context - answered, context // 2))
            answered = np.minimum(answered, context - sent)
        return Fitted(
            kept=kept,
            prompt_tokens=sent[kept],
            output_tokens=answered[kept],
            prompts_cut=int(np.count_nonzero((sent < prompt)[kept])),
            outputs_cut=int(np.count_nonzero((answered < output)[kept])),
            dropped=len(prompt) - len(kept),
        )


class MaxTokens(Protocol):
    """Rule for the client's limit on the answer length."""

    def tokens(self, model: IntArray, output: IntArray) -> IntArray:
        """Return the limit of each request, 1 or more; all arrays have shape (requests,)."""
        ...


@dataclass(frozen=True, slots=True)
class Exact:
    """Exactly the length of the answer, as if the client knew it."""

    def tokens(self, model: IntArray, output: IntArray) -> IntArray:
        """Return the limit of each request."""
        return output


@dataclass(frozen=True, slots=True)
class Fixed:
    """Equal limit for all; it cuts longer answers."""

    limit: int

    def tokens(self, model: IntArray, output: IntArray) -> IntArray:
        """Return the limit of each request."""
        return np.full(len(output), self.limit, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class AtLeastOutput:
    """Equal limit for all, raised to the length of longer answers, so that none is cut."""

    limit: int

    def tokens(self, model: IntArray, output: IntArray) -> IntArray:
        """Return the limit of each request."""
        return np.maximum(output, self.limit)


@dataclass(frozen=True, slots=True)
class Quantile:
    """Quantile of the stream's answer lengths for the same model; it cuts longer answers."""

    quantile: float

    def tokens(self, model: IntArray, output: IntArray) -> IntArray:
        """Return the limit of each request."""
        limits = np.ones(len(output), dtype=np.int64)
        for each in np.unique(model).tolist():
            mine = model == each
            limits[mine] = int(np.ceil(np.quantile(output[mine], self.quantile)))
        return limits


def _at_most(tokens: IntArray, limit: int | None) -> IntArray:
    return tokens if limit is None else np.minimum(tokens, limit)
