"""Rendering of conversations: what plain text does not say becomes token ids and a grammar."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from qlm.domain.formats.media import media_digest
from qlm.domain.ids import TokenIds
from qlm.domain.request import RequestMetadata
from qlm.gateway.api.bodies.constraints import grammar_text
from qlm.gateway.api.errors import ApiError, invalid, shown
from qlm.gateway.api.messages import FORMER_REASONING, as_sent_back
from qlm.gateway.api.rendered_fields import OF_PROMPT, RENDERED, without_effect
from qlm.gateway.api.schema import Body, ChatBody
from qlm.gateway.render.client import RenderClient
from qlm.gateway.render.media.inlining import Inlined, inlined
from qlm.gateway.render.media.links import Links
from qlm.gateway.render.media.placeholders import media_of
from qlm.gateway.render.state import PROMPT_TOKENS_MAX, RenderState, pack

_OPTIONS: Final = (*RENDERED, "skip_special_tokens")
_BESIDE_GRAMMAR: Final = ("reasoning_ended", "reasoning_parser_kwargs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A conversation as its engine gets it.

    Attributes:
        prompt_ids: The prompt.
        grammar: Constraint on the answer, for `Sampling.grammar`; empty for none.
        render_state: What derendering needs; None if the answer is plain text.
        media: Its images, sound and video (`formats.media`); empty without any.
        media_digest: Their digest.
    """

    prompt_ids: TokenIds
    grammar: str = ""
    render_state: str | None = None
    media: bytes = b""
    media_digest: str = ""

    def applied(self, metadata: RequestMetadata) -> RequestMetadata:
        """Return the metadata of a request with grammar, digest of the media, and state."""
        sampling = replace(metadata.sampling, grammar=self.grammar, media=self.media_digest)
        extensions = replace(metadata.extensions, render_state=self.render_state)
        return replace(metadata, sampling=sampling, extensions=extensions)


@dataclass(frozen=True, slots=True)
class RenderTier:
    """The render tier of one model.

    Attributes:
        client: Its client.
        reasons: The model reasons: all its conversations go through the tier.
        links: Fetches media; None if it takes none.
    """

    client: RenderClient
    reasons: bool = False
    links: Links | None = None


RenderTiers = Mapping[str, RenderTier]
"""The render tiers by model; models without one are not in it."""


async def render(tiers: RenderTiers, model: str, body: Body, plain: Mapping[str, Any]) -> Rendered | None:
    """Return a rendered conversation; None for one that the gateway can tokenize by itself.

    Args:
        tiers: The render tiers.
        model: The model that answers.
        body: The checked body.
        plain: The body as received.

    Raises:
        ApiError: The model has no render tier; or the tier refuses the request, fails, or is away.
    """
    if not isinstance(body, ChatBody):
        return None
    tier: RenderTier | None = tiers.get(model)
    needs = body.needs_render
    if tier is None and needs is not None:
        raise _not_supported(needs, model, plain)
    if tier is None or (needs is None and not tier.reasons):
        return None
    derenders = tier.reasons or bool(body.tools and body.tool_choice != "none")
    options = _options(plain) | {"model": model}
    given = await _inlined(tier, body, plain)
    # Of media, their places alone are wanted: the engine makes its own of the data.
    payload = {"mm_payload": "none"} if given.parts else {}
    asked = {**options, **payload, "messages": given.messages}
    answer = await tier.client.render(asked, large=bool(given.parts))
    prompt_ids, grammar = read_rendered(answer)
    media, digest = b"", ""
    if given.parts:
        media, digest = await asyncio.to_thread(_encoded, answer, prompt_ids, given.parts)
    rendered = Rendered(prompt_ids=prompt_ids, grammar=grammar, media=media, media_digest=digest)
    if not derenders:
        return rendered
    kept = prompt_ids[-PROMPT_TOKENS_MAX:] if tier.reasons else ()
    read = {name: value for name, value in options.items() if name not in OF_PROMPT}
    return replace(rendered, render_state=pack(RenderState(read, kept)))


def _encoded(
    answer: Mapping[str, Any], prompt_ids: TokenIds, parts: Sequence[Mapping[str, Any]]
) -> tuple[bytes, str]:
    """Return the media of a prompt and their digest; a matter of milliseconds where they are large."""
    media = media_of(answer, prompt_ids, parts)
    return media, media_digest(media)


async def _inlined(tier: RenderTier, body: ChatBody, plain: Mapping[str, Any]) -> Inlined:
    messages: list[Any] = [as_sent_back(each) for each in plain["messages"]]
    if tier.links is not None:
        return await inlined(body, messages, tier.links)
    # No address of a client may reach a render tier: it would fetch anything.
    for place, each in enumerate(body.messages):
        if each.media:
            where = f"messages[{place}].content"
            raise invalid(
                where, f"{where} has media; expected text: none are taken here", "unsupported_value"
            )
    return Inlined(messages, ())


def _options(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a render tier gets beside messages: not the fields without effect, which it may refuse."""
    neutral = without_effect(plain)
    return {name: plain[name] for name in _OPTIONS if name not in neutral and plain.get(name) is not None}


def _not_supported(name: str, model: str, plain: Mapping[str, Any]) -> ApiError:
    value = plain.get(name)
    if name.startswith("messages["):
        place, _, field = name.removeprefix("messages[").partition("].")
        message = plain["messages"][int(place)]
        value = message.get(field, message.get(FORMER_REASONING))
    expected = f"expected no such value: {model} has no render tier, which it needs"
    return invalid(name, f"{name} is {shown(value)}; {expected}", "unsupported_value")


def read_rendered(answer: Mapping[str, Any]) -> tuple[TokenIds, str]:
    """Return token ids and grammar of a render tier's answer.

    Raises:
        ApiError: It cannot be read, or the grammar is too large.
    """
    try:
        prompt_ids = tuple(int(id) for id in answer["token_ids"])
        constraint = answer["sampling_params"].get("structured_outputs")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        message = f"the render tier's answer cannot be read: {error!r}"
        raise ApiError(status=500, message=message, kind="server_error", code="render_failed") from error
    if not constraint:
        return prompt_ids, ""
    # Its other fields are defaults, and notes of vLLM for itself.
    fields = {
        key: value
        for key, value in constraint.items()
        if value is not None and value is not False and not key.startswith("_")
    }
    beside = {name: answer[name] for name in _BESIDE_GRAMMAR if answer.get(name) is not None}
    return prompt_ids, grammar_text(fields, beside, "response_format")
