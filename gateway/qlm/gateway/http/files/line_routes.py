"""The routes whose requests may be lines of batches."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from qlm.gateway.api.errors import invalid
from qlm.gateway.api.responses_api.body import parse_response
from qlm.gateway.api.responses_api.chat import NAMES, as_chat
from qlm.gateway.api.responses_api.items import as_items, image_places
from qlm.gateway.api.responses_api.state import state_of
from qlm.gateway.api.schema import Body, parse_chat, parse_completion
from qlm.gateway.api.translate import KEY_TENANT
from qlm.gateway.batches.line_routes import LineRoutes, PreparedLine
from qlm.gateway.http.attempts import fields_renamed, images_renamed
from qlm.gateway.http.derendered import answer_of
from qlm.gateway.http.responses_api.conversation import earlier_messages
from qlm.gateway.http.responses_api.earlier import StopWaits
from qlm.gateway.http.responses_api.prepared import identity_of, prepared_with
from qlm.gateway.http.responses_api.references import with_items
from qlm.gateway.http.responses_api.shown import answer_of_response
from qlm.gateway.sessions.families.members import answers_wanted
from qlm.gateway.sessions.gateway import Gateway


async def _prepare(
    parse: Callable[[dict[str, Any]], Body],
    gateway: Gateway,
    plain: dict[str, Any],
    headers: Mapping[str, str],
) -> PreparedLine:
    body = parse(plain)
    if (count := answers_wanted(body)) > 1:
        message = f"the line asks for {count} answers; expected one (by n or a list of prompts)"
        raise invalid("n", message, "unsupported_value")
    prepared = await gateway.intake.prepare(body, plain, headers, detached=True)
    return PreparedLine(prepared, partial(answer_of, gateway))


async def _prepare_response(
    gateway: Gateway, plain: dict[str, Any], headers: Mapping[str, str]
) -> PreparedLine:
    if plain.get("background"):
        raise invalid("background", "background is true; expected no such field: no line has a client")
    with fields_renamed(NAMES):
        body = parse_response(plain)
        state, identity = state_of(body, plain), identity_of(plain)
        prepared = await gateway.intake.earlier(body, identity, headers)
        if prepared is None:
            waits, tenant = StopWaits(gateway), headers[KEY_TENANT]
            body = await with_items(gateway, body, tenant, waits)
            state = state_of(body, plain)
            earlier = await earlier_messages(gateway, body.previous_response_id, tenant, waits)
            chat = as_chat(body, plain, earlier)
            with images_renamed(chat, image_places(as_items(body.input))):
                prepared = await gateway.intake.prepare(
                    parse_chat(chat), chat | {"response": plain}, headers, detached=True, identity=identity
                )
        prepared = prepared_with(prepared, state)
    return PreparedLine(prepared, partial(answer_of_response, gateway, state))


LINE_ROUTES: Final[LineRoutes] = {
    "/v1/chat/completions": partial(_prepare, parse_chat),
    "/v1/completions": partial(_prepare, parse_completion),
    "/v1/responses": _prepare_response,
}
"""By path."""
