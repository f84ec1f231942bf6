"""The tokenizer of emulated models: one token per byte of UTF-8."""

import codecs
from collections.abc import Iterable, Sequence

from qlm.domain.byte_tokens import EOS_ID, VOCABULARY
from qlm.domain.ids import TokenIds
from qlm.gateway.core.tokenizer import ChatMessage, Detokenizer

_Utf8 = codecs.getincrementaldecoder("utf-8")


class ByteTokenizer:
    """Bytes as tokens. A conversation is encoded as `role: content` lines followed by `assistant:`."""

    @property
    def vocabulary(self) -> int:
        """256 bytes and the end-of-sequence token."""
        return VOCABULARY

    @property
    def eos_ids(self) -> frozenset[int]:
        """The only token that is not a byte."""
        return frozenset((EOS_ID,))

    @property
    def eos_id(self) -> int:
        """The only one."""
        return EOS_ID

    def encode(self, text: str, *, add_special_tokens: bool = True) -> TokenIds:
        """Return the bytes of the text, around which there are no special tokens."""
        return tuple(text.encode())

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return ASCII as it is and other bytes by their number, as vocabularies with single bytes do."""
        return [_piece(id) for id in ids]

    def encode_chat(self, messages: Sequence[ChatMessage]) -> TokenIds:
        """Return the bytes of the conversation."""
        lines = (f"{message.role}: {message.content}\n" for message in messages)
        return tuple("".join((*lines, "assistant:")).encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Decode bytes; the end-of-sequence token has no text."""
        return bytes(id for id in ids if id < EOS_ID).decode(errors="replace")

    def token_text(self, id: int) -> str:
        """Decode one byte."""
        return self.decode((id,))

    def detokenizer(self, prompt_tail: Sequence[int], *, skip_special_tokens: bool) -> Detokenizer:
        """Begin an answer; both arguments are irrelevant here."""
        return ByteDetokenizer()


def _piece(id: int) -> str:
    if id == EOS_ID:
        return "</s>"
    return chr(id) if id < 128 else f"<0x{id:02X}>"


class ByteDetokenizer:
    """Incremental UTF-8 decoder; invalid bytes become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = _Utf8("replace")

    def feed(self, ids: Iterable[int]) -> str:
        """Take further tokens; the end-of-sequence token has no text."""
        return self._decoder.decode(bytes([id for id in ids if id < EOS_ID]))
