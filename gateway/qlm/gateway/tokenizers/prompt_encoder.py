"""Tokenization of prompts beside the event loop."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from qlm.domain.ids import TokenIds
from qlm.gateway.api.schema import Body, ChatBody
from qlm.gateway.api.translate import chat_messages
from qlm.gateway.core.tokenizer import Tokenizer


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
        loop = asyncio.get_running_loop()
        if isinstance(body, ChatBody):
            messages = chat_messages(body.messages)
            if sum(len(each.content) for each in messages) <= self._inline_chars:
                return tokenizer.encode_chat(messages)
            return await loop.run_in_executor(self._threads, tokenizer.encode_chat, messages)
        prompt = body.prompt
        if not isinstance(prompt, str):
            return tuple(id for id in prompt if isinstance(id, int))
        if len(prompt) <= self._inline_chars:
            return tokenizer.encode(prompt)
        return await loop.run_in_executor(self._threads, tokenizer.encode, prompt)

    def close(self) -> None:
        """Cancel what has not begun; do not wait for the rest."""
        self._threads.shutdown(wait=False, cancel_futures=True)
