"""Limits of a request: what fits the context of its model, and the answer length its client allows."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from qlm.simulator.scenario import IntArray


class OverContext(StrEnum):
    """What becomes of a request whose prompt and answer exceed the context of its model."""

    CUT = "cut"
    """The prompt makes room for the answer down to half the context, then the answer is cut."""
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitted:
    """Lengths that fit.

    Attributes:
        kept: Rows that are left, shape (rows,).
        prompt_tokens: Of those.
        output_tokens: Of those.
        prompts_cut: How many prompts are shorter than they were.
        outputs_cut: Likewise answers.
        dropped: How many requests were left out.
    """

    kept: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    prompts_cut: int
    outputs_cut: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthLimits:
    """The limits of a stream.

    Attributes:
        prompt_tokens_max: Longer prompts are cut to it; None for no limit.
        output_tokens_max: Longer answers likewise.
        over_context: What becomes of requests that exceed the context of their model.
    """

    prompt_tokens_max: int | None = None
    output_tokens_max: int | None = None
    over_context: OverContext = OverContext.CUT

    def fit(self, prompt: IntArray, output: IntArray, context: IntArray) -> Fitted:
        """Cut or drop what is too long.

        Args:
            prompt: Lengths of prompts, shape (requests,).
            output: Lengths of answers, likewise.
            context: Of each request's model, 2 or more, likewise.
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
    """The rule for the answer length that a client allows."""

    def tokens(self, model: IntArray, output: IntArray) -> IntArray:
        """Return the limit of each request, 1 or more; the context may lower it.

        Args:
            model: Model of each request, shape (requests,).
            output: Lengths of answers, likewise.
        """
        ...


@dataclass(frozen=True, slots=True)
class Exact:
    """Just the length of the answer: the client knows it."""

    def tokens(self, model: IntArray, output: IntArray) -> IntArray:
        """Return the limit of each request."""
        return output


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same for all; longer answers are cut off by it."""

    limit: int

    def tokens(self, model: IntArray, output: IntArray) -> IntArray:
        """Return the limit of each request."""
        return np.full(len(output), self.limit, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class AtLeastOutput:
    """The same for all whose answer is no longer, else the length of the answer: nothing is cut off."""

    limit: int

    def tokens(self, model: IntArray, output: IntArray) -> IntArray:
        """Return the limit of each request."""
        return np.maximum(output, self.limit)


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile of the stream's answer lengths for the same model; longer answers are cut off by it."""

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
