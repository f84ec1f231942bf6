"""/tokenize and /detokenize: prompts in the tokens of a model, as its engine would get them, and back."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest

from qlm.domain.ids import TokenIds
from qlm.gateway.api.bodies.json_object import parse_json
from qlm.gateway.api.bodies.tokens import (
    TOKENIZED_CHAT,
    Detokenize,
    TokenizeChat,
    TokenizeText,
    as_chat,
    parse_detokenize,
    parse_tokenize,
)
from qlm.gateway.api.errors import invalid
from qlm.gateway.api.fields.tokens import Detokenized, Tokenized
from qlm.gateway.core.tokenizer import ServedModel
from qlm.gateway.http.completions import read_body
from qlm.gateway.http.document.accepts import accepts
from qlm.gateway.http.responses import Json
from qlm.gateway.render.rendering import render
from qlm.gateway.sessions.gateway import Gateway


@accepts(TokenizeText)
@accepts(TokenizeChat, neutral=TOKENIZED_CHAT)
async def tokenize(gateway: Gateway, request: HttpRequest) -> Json[Tokenized]:
    """Answer POST /tokenize: the tokens of a text, or of a conversation through the model's chat template."""
    plain = parse_json(await read_body(request, gateway.limits.body_bytes_max))
    body = parse_tokenize(plain)
    served = gateway.models.chosen(body.model)
    if isinstance(body, TokenizeChat):
        ids = await _chat_ids(gateway, served, plain)
    else:
        encode = partial(served.tokenizer.encode, add_special_tokens=body.add_special_tokens)
        ids = await gateway.encoder.run(len(body.prompt), encode, body.prompt)
    return Json(
        {
            "count": len(ids),
            "max_model_len": served.spec.context_tokens,
            "tokens": ids,
            "token_strs": served.tokenizer.pieces(ids) if body.return_token_strs else None,
        }
    )


@accepts(Detokenize)
async def detokenize(gateway: Gateway, request: HttpRequest) -> Json[Detokenized]:
    """Answer POST /detokenize: the text of tokens, special ones included."""
    body = parse_detokenize(parse_json(await read_body(request, gateway.limits.body_bytes_max)))
    tokenizer = gateway.models.chosen(body.model).tokenizer
    unknown = next((id for id in body.tokens if id >= tokenizer.vocabulary), None)
    if unknown is not None:
        raise invalid("tokens", f"tokens has {unknown}; expected token ids below {tokenizer.vocabulary}")
    text = await gateway.encoder.run(len(body.tokens), tokenizer.decode, body.tokens)
    return Json({"prompt": text})


async def _chat_ids(gateway: Gateway, served: ServedModel, plain: Mapping[str, Any]) -> TokenIds:
    """Return the prompt that the same conversation would have as a chat."""
    body, chat = as_chat(plain)
    rendered = await render(gateway.render_tiers, served.spec.id, body, chat)
    return await gateway.encoder.encode(body, served.tokenizer) if rendered is None else rendered.prompt_ids
