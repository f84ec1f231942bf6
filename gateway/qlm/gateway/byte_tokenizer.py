"""The tokenizer of emulated models: one token per byte of UTF-8."""

import codecs
from collections.abc import Iterable, Sequence

from qlm.domain.byte_tokens import EOS_ID, VOCABULARY
from qlm.domain.ids import TokenIds
from qlm.gateway.tokenizer import ChatMessage, Detokenizer

_Utf8 = codecs.getincrementaldecoder("utf-8")


class ByteTokenizer:
    """Bytes as tokens; a conversation is written as `role: content` lines and `assistant:`."""

    @property
    def vocabulary(self) -> int:
        """256 bytes and the end-of-sequence token."""
        return VOCABULARY

    @property
    def eos_ids(self) -> frozenset[int]:
        """The one token that is no byte."""
        return frozenset((EOS_ID,))

    def encode(self, text: str) -> TokenIds:
        """Return the bytes of the text."""
        return tuple(text.encode())

    def encode_chat(self, messages: Sequence[ChatMessage]) -> TokenIds:
        """Return the bytes of the conversation."""
        lines = (f"{message.role}: {message.content}\n" for message in messages)
        return tuple("".join((*lines, "assistant:")).encode())

    def detokenizer(self, prompt_tail: Sequence[int], *, skip_special_tokens: bool) -> Detokenizer:
        """Begin an answer; neither argument matters here."""
        return ByteDetokenizer()


class ByteDetokenizer:
    """Decodes UTF-8 as it comes; bytes that are none become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = _Utf8("replace")

    def feed(self, ids: Iterable[int]) -> str:
        """Take further tokens; the end-of-sequence token has no text."""
        return self._decoder.decode(bytes(id for id in ids if id < EOS_ID))
