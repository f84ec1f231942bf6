"""What a request knows of the others of its family."""

from dataclasses import dataclass, replace
from typing import Final

from qlm.domain.request import RequestMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The other requests that a call makes (`families`).

    Attributes:
        requests: Their number.
        prompt_tokens: Tokens of the further prompts.
        prompts: Prompts of the call.
        n: Answers to each prompt.
    """

    requests: int = 0
    prompt_tokens: int = 0
    prompts: int = 1
    n: int = 1


ALONE: Final = Beside()
"""A call with one answer."""


def with_beside(metadata: RequestMetadata, beside: Beside) -> RequestMetadata:
    """Return the first request of a family with the numbers of the others."""
    extensions = replace(metadata.extensions, choice=0, choices=1 + beside.requests, prompts=beside.prompts)
    return replace(metadata, extensions=extensions)
