"""What the engines of a model have to know of its render tier: the parser of its reasoning.

A vLLM without it applies a grammar from the first token on, so that the model cannot reason before it.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from qlm.agents.engines.refused_arguments import flag_of
from qlm.cli.config.serving import RenderConfig

PARSER: Final = "--reasoning-parser"
_FOR_ENGINES: Final = frozenset({PARSER, "--reasoning-parser-plugin"})


def engine_args(render: RenderConfig | None) -> tuple[str, ...]:
    """Return the arguments that the engines of a model share with its render tier."""
    if render is None:
        return ()
    if render.reasoning_parser is not None:
        return PARSER, render.reasoning_parser
    return tuple(_shared(render.extra_args))


def _shared(words: Sequence[str]) -> Iterator[str]:
    for place, word in enumerate(words):
        if word.startswith("--") and flag_of(word) in _FOR_ENGINES:
            yield word
            if "=" not in word:
                yield from words[place + 1 : place + 2]
