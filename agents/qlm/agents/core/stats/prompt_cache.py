"""Prompt tokens that the engines found in their prefix caches, by class, over the latest answers."""

from typing import Final

from qlm.agents.core.request import TrackedRequest
from qlm.domain.fleet import CachedPrompts
from qlm.domain.group import RequestClass

CLASSES_MAX: Final = 100
"""Classes counted; of more, the one that was served longest ago goes first."""

KEEP: Final = 1 - 1 / 500
"""Factor by which each prompt of a class reduces the weight of its earlier ones."""

_NONE: Final = (0.0, 0.0, 0.0, 0.0)


class PromptCache:
    """Sums for `CachedPrompts`, of all models of an instance: they outlive a swap."""

    def __init__(self) -> None:
        self._sums: dict[RequestClass, tuple[float, float, float, float]] = {}

    def ended(self, tracked: TrackedRequest, cached_tokens: int) -> None:
        """Count the prompt of an answer that has ended; a resumed one would find what it left itself."""
        if tracked.resumed_at:
            return
        cls, prompt_tokens = tracked.request.cls, tracked.request.prompt_tokens
        found = min(prompt_tokens, max(0, cached_tokens))
        prompts, hits, tokens, cached = self._sums.pop(cls, _NONE)
        self._sums[cls] = (
            KEEP * prompts + 1,
            KEEP * hits + (found > 0),
            KEEP * tokens + prompt_tokens,
            KEEP * cached + found,
        )
        if len(self._sums) > CLASSES_MAX:
            del self._sums[next(iter(self._sums))]

    def computed_share(self, cls: RequestClass) -> float:
        """Return the share of the prompts of a class that engines compute; 1 before the first ended."""
        _prompts, _hits, tokens, cached = self._sums.get(cls, _NONE)
        return 1.0 - cached / tokens if tokens else 1.0

    def computed_tokens(self, cls: RequestClass) -> float | None:
        """Return the tokens that engines compute of a mean prompt of a class; None before the first ended."""
        prompts, _hits, tokens, cached = self._sums.get(cls, _NONE)
        return (tokens - cached) / prompts if prompts else None

    def report(self) -> tuple[CachedPrompts, ...]:
        """Return the sums."""
        return tuple(
            CachedPrompts(cls=cls, prompts=prompts, hits=hits, prompt_tokens=tokens, cached_tokens=cached)
            for cls, (prompts, hits, tokens, cached) in self._sums.items()
        )
