"""Chat templates of Hugging Face models, rendered as in the library transformers.

The rules (sandbox, trimmed blocks, `tojson` without HTML escapes, `strftime_now`, loop controls, the
`generation` tag) are those of `transformers.utils.chat_template_utils`; models are trained on them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qlm.domain.errors import InvalidValueError
from qlm.gateway.core.tokenizer import ChatMessage


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's turn for training; for serving it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own protocol

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], now: Callable[[], datetime]) -> None:
        """Compile a jinja template.

        Args:
            source: The template.
            special_tokens: Variables such as `bos_token`.
            now: Returns the local time, for templates that write the date.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        self._template = environment.from_string(source)
        self._knows_developers = "'developer'" in source or '"developer"' in source
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """Render a conversation up to the beginning of the assistant's answer.

        Raises:
            InvalidValueError: The template refuses the conversation.
        """
        spoken = messages if self._knows_developers else _without_developers(messages)
        conversation = [_plain(message) for message in spoken]
        try:
            return self._template.render(
                messages=conversation,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            roles = [message.role for message in messages]
            raise InvalidValueError(
                "messages", roles, f"a conversation that the model's chat template accepts ({error})"
            ) from error


def _without_developers(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """Return a conversation whose developers speak as the system, in one message at its beginning.

    As in vLLM 0.32: a template that does not know them would leave out what they say, or fail.
    """
    if all(message.role != "developer" for message in messages):
        return messages
    instructions = [message for message in messages if message.role in ("system", "developer")]
    rest = [message for message in messages if message.role not in ("system", "developer")]
    content = "\n\n".join(message.content for message in instructions if message.content)
    alone = len(instructions) == 1 and messages[0] is instructions[0]
    return [ChatMessage(role="system", content=content, name=messages[0].name if alone else None), *rest]


def _plain(message: ChatMessage) -> dict[str, str]:
    plain = {"role": message.role, "content": message.content}
    return plain if message.name is None else plain | {"name": message.name}


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
