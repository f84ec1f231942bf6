"""Interfaces of tokenizers and detokenizers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from qlm.domain.fleet import ModelSpec
from qlm.domain.ids import TokenIds
from qlm.gateway.core.sampling_defaults import VLLM_DEFAULTS, SamplingDefaults


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a conversation, as a chat template sees it."""

    role: str
    content: str
    name: str | None = None


class Detokenizer(Protocol):
    """Incremental conversion of token ids into text.

    The text released after n tokens depends on these n tokens only, not on their division into calls, so a
    stream that resumes elsewhere continues exactly. An incomplete character is buffered, and left out if its
    last bytes never come.
    """

    def feed(self, ids: Iterable[int]) -> str:
        """Take further tokens; return the text that they complete."""
        ...


class Tokenizer(Protocol):
    """A model's tokenizer."""

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    @property
    def eos_id(self) -> int | None:
        """The tokenizer's own among them; None if it has none."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> TokenIds:
        """Tokenize the prompt of a completion, with the special tokens that the model wants around it."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return tokens as the vocabulary has them, empty for ids that it leaves out."""
        ...

    def encode_chat(self, messages: Sequence[ChatMessage]) -> TokenIds:
        """Tokenize a conversation through the chat template, ready for the assistant's answer.

        Raises:
            InvalidValueError: The model has no chat template, or its template refuses the conversation.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens on their own, special ones included; invalid bytes become U+FFFD."""
        ...

    def token_text(self, id: int) -> str:
        """Return the text of one token on its own, with the spaces with which it begins."""
        ...

    def detokenizer(self, prompt_tail: Sequence[int], *, skip_special_tokens: bool) -> Detokenizer:
        """Begin the text of an answer that follows a prompt ending in `prompt_tail`."""
        ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, or one of its adapters, with its tokenizer and its sampling defaults.

    Attributes:
        spec: The model; of an adapter its base.
        tokenizer: Of the model.
        defaults: Of the model.
        adapter: Name of the adapter; empty for the model itself.
    """

    spec: ModelSpec
    tokenizer: Tokenizer
    defaults: SamplingDefaults = VLLM_DEFAULTS
    adapter: str = ""

    @property
    def name(self) -> str:
        """Its name for clients."""
        return self.adapter or self.spec.id
