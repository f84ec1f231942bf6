"""Tokenization of prompts beside the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

from qlm.domain.ids import TokenIds
from qlm.gateway.api.schema import Body, ChatBody
from qlm.gateway.api.translate import chat_messages
from qlm.gateway.core.tokenizer import Tokenizer

_Input = TypeVar("_Input")
_Result = TypeVar("_Result")


class PromptEncoder:
    """Tokenizes short prompts at once, and long ones on a thread so that the event loop stays responsive."""

    def __init__(self, inline_chars: int, threads: int) -> None:
        """Prepare `threads` threads for prompts of more than `inline_chars` characters."""
        self._inline_chars = inline_chars
        self._threads = ThreadPoolExecutor(threads, "encode")

    async def encode(self, body: Body, tokenizer: Tokenizer) -> TokenIds:
        """Return the prompt's tokens.

        Raises:
            InvalidValueError: The model's chat template refuses the conversation.
        """
        if isinstance(body, ChatBody):
            messages = chat_messages(body.messages)
            return await self.run(
                sum(len(each.content) for each in messages), tokenizer.encode_chat, messages
            )
        prompt = body.prompt
        if not isinstance(prompt, str):
            return tuple(cast("list[int]", prompt))  # a body with several prompts is divided before
        return await self.run(len(prompt), tokenizer.encode, prompt)

    async def run(self, size: int, work: Callable[[_Input], _Result], over: _Input) -> _Result:
        """Return `work(over)`, at once if its characters or tokens are few, else on a thread."""
        if size <= self._inline_chars:
            return work(over)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, over)

    def close(self) -> None:
        """Cancel what has not begun; do not wait for the rest."""
        self._threads.shutdown(wait=False, cancel_futures=True)
