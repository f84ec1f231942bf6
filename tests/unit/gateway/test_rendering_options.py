"""What a render tier gets of a conversation: messages and options, but no field without effect."""

import random
from typing import Any

import pytest

from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.schema import parse_chat
from qlm.gateway.render.rendering import render
from qlm.gateway.render.state import unpack
from support.rendering import emulated_tiers

PLAIN = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        # vLLM refuses a choice of tools without tools.
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, {}),
        ({"response_format": {"type": "text"}, "chat_template_kwargs": {}, "reasoning_effort": None}, {}),
        ({"tool_choice": "none", "reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"add_generation_prompt": True, "add_special_tokens": False, "documents": []}, {}),
    ],
)
async def test_fields_without_effect_do_not_reach_the_tier_of_a_model_that_reasons(
    fields: dict[str, Any], sent: dict[str, Any]
) -> None:
    body = PLAIN | fields
    async with emulated_tiers("m", reasons=True) as tiers:
        rendered = await render(tiers, "m", parse_chat(body), body)
    assert rendered is not None
    assert rendered.render_state is not None
    options = dict(unpack(rendered.render_state).chat_request)
    del options["messages"]
    assert options == {"model": "m", **sent}


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"add_generation_prompt": False}, "user: Hi\n"),
        ({"documents": [{"text": "a"}]}, 'documents: [{"text": "a"}]\nuser: Hi\nassistant:'),
        ({"add_generation_prompt": False, "continue_final_message": True}, "user: Hi"),
    ],
)
async def test_fields_for_the_chat_template_change_the_prompt(fields: dict[str, Any], prompt: str) -> None:
    body = PLAIN | fields
    async with emulated_tiers("m") as tiers:
        rendered = await render(tiers, "m", parse_chat(body), body)
    assert rendered is not None
    assert bytes(rendered.prompt_ids).decode() == prompt
    assert rendered.render_state is None, "the answer is plain text"


async def test_a_message_cannot_be_continued_and_answered() -> None:
    body = PLAIN | {"continue_final_message": True}
    async with emulated_tiers("m") as tiers:
        with pytest.raises(ApiError) as caught:
            await render(tiers, "m", parse_chat(body), body)
    assert caught.value.status == 400


async def test_documents_are_no_part_of_what_reads_the_answer() -> None:
    body = PLAIN | {"documents": [{"text": "".join(random.Random(1).choices("abcdefgh", k=200_000))}]}
    async with emulated_tiers("m", reasons=True) as tiers:
        rendered = await render(tiers, "m", parse_chat(body), body)
    assert rendered is not None
    assert rendered.render_state is not None
    assert "documents" not in unpack(rendered.render_state).chat_request
