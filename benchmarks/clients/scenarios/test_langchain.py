"""LangChain's standard integration tests of chat models, for `ChatOpenAI` at QLM, asked in three ways."""

import os
from typing import Any, ClassVar, Literal

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


def not_emulated(what: str) -> pytest.MarkDecorator:
    """Mark a test that needs what only a real model does."""
    return pytest.mark.xfail(reason=f"an emulated model {what}")


class _AtQlm(ChatModelIntegrationTests):
    """What is the same in all of them."""

    more: ClassVar[dict[str, Any]] = {}

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": os.environ["QLM_MODEL"],
            "base_url": f"{os.environ['QLM_URL']}/v1",
            "api_key": "none",
            "max_retries": 0,
            "stream_usage": True,  # off by default where `base_url` is not OpenAI's
            **self.more,
        }

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return os.environ["QLM_OTHER_MODEL"]

    @property
    def supported_usage_metadata_details(self) -> dict[Literal["invoke", "stream"], list[Any]]:
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> Any:
        model = ChatOpenAI(**self.chat_model_params)
        asked = "The same question, so long that some blocks of it are in the cache. " * 8
        model.invoke(asked)
        if not stream:
            return model.invoke(asked)
        first, *others = model.stream(asked)
        return sum(others, start=first)

    @not_emulated("takes no arguments of tools from the conversation")
    def test_tool_calling(self, model: BaseChatModel) -> None:
        super().test_tool_calling(model)

    @not_emulated("takes no arguments of tools from the conversation")
    async def test_tool_calling_async(self, model: BaseChatModel) -> None:
        await super().test_tool_calling_async(model)

    @not_emulated("takes no arguments of tools from the conversation")
    def test_unicode_tool_call_integration(
        self, model: BaseChatModel, *, tool_choice: str | None = None, force_tool_call: bool = True
    ) -> None:
        super().test_unicode_tool_call_integration(model, force_tool_call=force_tool_call)

    @not_emulated("calls no tool unless told to")
    def test_agent_loop(self, model: BaseChatModel) -> None:
        super().test_agent_loop(model)


class TestChat(_AtQlm):
    """Chat completions; structured answers by JSON schema."""


class TestChatWithStructureByTools(_AtQlm):
    """Chat completions; structured answers by a call of a tool."""

    @property
    def structured_output_kwargs(self) -> dict[str, Any]:
        return {"method": "function_calling"}


class TestResponses(_AtQlm):
    """Responses."""

    more: ClassVar[dict[str, Any]] = {"use_responses_api": True}
