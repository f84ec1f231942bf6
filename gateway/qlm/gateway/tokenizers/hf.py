"""Tokenizers of Hugging Face models, read from a directory with tokenizer.json and its companions."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer as RustTokenizer
from tokenizers.decoders import DecodeStream
from tokenizers.processors import TemplateProcessing

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import TokenIds
from qlm.gateway.core.tokenizer import ChatMessage, Detokenizer
from qlm.gateway.tokenizers.chat_template import ChatTemplate
from qlm.gateway.tokenizers.generation_config import read_generation_config
from qlm.gateway.tokenizers.json_file import read_object

PENDING_TOKENS_MAX: Final = 64
"""Tokens that may wait for the rest of a character. The decoder's work grows with their square, and a model
in a loop can generate thousands of them; no character needs more than a few."""


class HfTokenizer:
    """A tokenizer that encodes as vLLM does.

    A completion's prompt gets the special tokens that tokenizer.json (or `add_bos_token` in
    tokenizer_config.json) puts around it; a chat template writes its own.
    """

    def __init__(
        self, folder: Path, now: Callable[[], datetime] = datetime.now, generation_config: str = "auto"
    ) -> None:
        """Read a tokenizer.

        Args:
            folder: Holds tokenizer.json and, as far as the model has them, tokenizer_config.json,
                chat_template.jinja, generation_config.json, config.json.
            now: Local time, for chat templates that write the date.
            generation_config: That of the model (`ModelSpec`).

        Raises:
            InvalidValueError: tokenizer.json is missing or unreadable.
        """
        file = folder / "tokenizer.json"
        try:
            self._rust = RustTokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise InvalidValueError("tokenizer", str(file), f"a readable tokenizer.json ({error})") from error
        self._rust.no_truncation()
        self._rust.no_padding()
        config = read_object(folder / "tokenizer_config.json")
        special_tokens = _special_tokens(read_object(folder / "special_tokens_map.json") | config)
        _add_edges(self._rust, config, special_tokens)
        model_config = read_object(folder / "config.json")
        self._vocabulary = max(
            self._rust.get_vocab_size(with_added_tokens=True), int(model_config.get("vocab_size", 0))
        )
        settings = read_generation_config(folder, generation_config)
        eos_token = special_tokens.get("eos_token")
        self._eos_id: int | None = None if eos_token is None else self._rust.token_to_id(eos_token)
        self._eos_ids = _listed_eos_ids(settings).union([] if self._eos_id is None else [self._eos_id])
        source = _template_source(folder, config)
        self._template = None if source is None else ChatTemplate(source, special_tokens, now)

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        return self._vocabulary

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer: the tokenizer's own, and those of generation_config.json."""
        return self._eos_ids

    @property
    def eos_id(self) -> int | None:
        """The tokenizer's own."""
        return self._eos_id

    def encode(self, text: str, *, add_special_tokens: bool = True) -> TokenIds:
        """Tokenize the prompt of a completion."""
        return tuple(self._rust.encode(text, add_special_tokens=add_special_tokens).ids)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return tokens as tokenizer.json has them."""
        return [self._rust.id_to_token(id) or "" for id in ids]

    def encode_chat(self, messages: Sequence[ChatMessage]) -> TokenIds:
        """Tokenize a conversation.

        Raises:
            InvalidValueError: The model has no chat template, or its template refuses the conversation.
        """
        if self._template is None:
            raise InvalidValueError("messages", len(messages), "a prompt: this model has no chat template")
        return tuple(self._rust.encode(self._template.render(messages), add_special_tokens=False).ids)

    @cached_property
    def _space(self) -> str | None:
        """The mark of a space in the vocabulary of SentencePiece; None for another vocabulary."""
        pre: Mapping[str, Any] = json.loads(self._rust.to_str()).get("pre_tokenizer") or {}
        for each in (pre, *pre.get("pretokenizers", ())):
            if each.get("type") == "Metaspace":
                return str(each.get("replacement", "▁"))
        return None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens on their own."""
        return self._rust.decode(list(ids), skip_special_tokens=False)

    def token_text(self, id: int) -> str:
        """Return the text of one token; a decoder drops the first space of a text, which belongs to it."""
        text = self.decode((id,))
        if self._space is None or (piece := self._rust.id_to_token(id)) is None:
            return text
        spaces = len(piece) - len(piece.lstrip(self._space))
        return " " * max(0, spaces - (len(text) - len(text.lstrip(" ")))) + text

    def detokenizer(self, prompt_tail: Sequence[int], *, skip_special_tokens: bool) -> Detokenizer:
        """Begin the text of an answer that follows a prompt ending in `prompt_tail`."""
        return HfDetokenizer(self._rust, prompt_tail, skip_special_tokens)


class HfDetokenizer:
    """The library's decode stream, fed one token at a time, so that the division into calls cannot matter."""

    def __init__(self, rust: RustTokenizer, prompt_tail: Sequence[int], skip_special_tokens: bool) -> None:
        self._rust = rust
        self._skip = skip_special_tokens
        self._stream = self._primed(prompt_tail)
        self._pending: list[int] = []

    def feed(self, ids: Iterable[int]) -> str:
        """Take further tokens; return the text that they complete."""
        return "".join(map(self._feed_one, ids))

    def _feed_one(self, id: int) -> str:
        self._pending.append(id)
        try:
            piece = self._stream.step(self._rust, id)
        except Exception:
            # Invalid UTF-8 can make the decoder retract text that it has returned; then each further step
            # raises a bare Exception. vLLM also begins a new stream (vllm issue 17448).
            self._stream = self._primed(())
            self._pending = [id]
            piece = self._stream.step(self._rust, id)
        if piece is not None:
            self._pending.clear()
            return piece
        if len(self._pending) <= PENDING_TOKENS_MAX:
            return ""
        piece = self._rust.decode(self._pending, skip_special_tokens=self._skip)
        self._stream = self._primed(self._pending)
        self._pending = []
        return piece

    def _primed(self, ids: Sequence[int]) -> DecodeStream:
        return DecodeStream(ids=list(ids), skip_special_tokens=self._skip)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return special tokens by name (`eos_token`); the file has strings, or objects with `content`."""
    named = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            named[name] = content
    return named


def _add_edges(rust: RustTokenizer, config: Mapping[str, Any], special_tokens: Mapping[str, str]) -> None:
    """Apply `add_bos_token` and `add_eos_token`, which override tokenizer.json as in transformers."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    around = {}
    for edge in ("bos", "eos"):
        token = special_tokens.get(f"{edge}_token")
        id = None if token is None else rust.token_to_id(token)
        if config.get(f"add_{edge}_token") and token is not None and id is not None:
            around[edge] = (token, id)
    single = [around["bos"][0]] if "bos" in around else []
    single += ["$A", *([around["eos"][0]] if "eos" in around else [])]
    rust.post_processor = TemplateProcessing(single=single, special_tokens=list(around.values()))


def _listed_eos_ids(generation_config: Mapping[str, Any]) -> frozenset[int]:
    listed = generation_config.get("eos_token_id")
    return frozenset(id for id in (listed if isinstance(listed, list) else [listed]) if isinstance(id, int))


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the chat template: that of its own file, else the `default` of the configuration."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {each.get("name"): each.get("template") for each in source if isinstance(each, dict)}
        source = named.get("default")
    return source if isinstance(source, str) else None
