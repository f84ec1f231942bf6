"""The tokens before a stop text, which are all that a render tier reads of an answer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers

from qlm.domain.request import Answer, AnswerKind, RequestMetadata
from qlm.gateway.core.answer_text import answer_text
from qlm.gateway.core.tokenizer import Tokenizer
from qlm.gateway.render.before_stop import BeforeStop, before_stop
from qlm.gateway.tokenizers.byte import ByteTokenizer
from qlm.gateway.tokenizers.hf import HfTokenizer
from support.requests import a_request

BYTES = ByteTokenizer()


def asked(*stop: str, include_stop: bool = False) -> RequestMetadata:
    answer = Answer(kind=AnswerKind.CHAT, stop=stop, include_stop=include_stop)
    return replace(a_request("r").metadata(), answer=answer, prompt_tail=())


def read(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.detokenizer((), skip_special_tokens=True).feed(ids)


SPACE = "\u0120"
MERGES = [("i", "t"), (SPACE, "it"), (".", "O"), (".O", "b"), ("c", "a"), ("l", "l"), ("ca", "ll")]
SPECIAL = ["<call>", "</call>"]


def byte_level() -> RustTokenizer:
    """Tokens of several characters, in the manner of GPT-2."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, MERGES)]
    rust = RustTokenizer(models.BPE({piece: id for id, piece in enumerate(pieces)}, MERGES))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rust.decoder = decoders.ByteLevel()
    return rust


def byte_fallback() -> RustTokenizer:
    """The same in the manner of Llama 2: a text begins with a space."""
    merges = [(left.replace(SPACE, "▁"), right.replace(SPACE, "▁")) for left, right in MERGES]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = dict.fromkeys([*bytes_, *"▁abcdefghijklmnopqrstuvwxyzO.:", *map("".join, merges)])
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    rust = RustTokenizer(models.BPE(vocabulary, merges, byte_fallback=True))
    rust.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    rust.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return rust


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tokenizer]:
    """Tokenizers by name."""
    made: dict[str, Tokenizer] = {"bytes": BYTES}
    for make in (byte_level, byte_fallback):
        rust, folder = make(), tmp_path_factory.mktemp(make.__name__)
        rust.add_special_tokens(SPECIAL)
        rust.save(str(folder / "tokenizer.json"))
        made[make.__name__] = HfTokenizer(folder)
    return made


def test_what_may_begin_a_stop_text_is_held_back() -> None:
    reader = BeforeStop(asked("END"), BYTES)
    taken = [bytes(reader.take([each])) for each in b"aEbENc"]
    assert taken == [b"a", b"", b"Eb", b"", b"", b"ENc"]
    assert (bytes(reader.take(b"E")), bytes(reader.end()), reader.rest) == (b"", b"E", ())


@pytest.mark.parametrize(("include_stop", "left"), [(False, b"a "), (True, b"a END")])
def test_what_belongs_to_the_stop_text_is_left_out_unless_it_is_wanted(
    include_stop: bool, left: bytes
) -> None:
    assert bytes(before_stop(asked("END", include_stop=include_stop), BYTES, tuple(b"a END more"))) == left


def test_half_a_character_before_the_stop_text_is_no_part_of_the_answer() -> None:
    ids = tuple("a观察:".encode())
    assert bytes(before_stop(asked("观察"), BYTES, ids)) == b"a"


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_a_token_that_the_stop_text_begins_in_is_replaced_by_others(
    tokenizers: Mapping[str, Tokenizer], name: str
) -> None:
    tokenizer = tokenizers[name]
    ids = tokenizer.encode("call it.Obs: x")
    assert ".Ob" in tokenizer.pieces(ids)
    before = before_stop(asked("Obs"), tokenizer, ids)
    assert read(tokenizer, before) == "call it."
    assert before[:-1] == ids[: len(before) - 1]


def test_a_special_token_before_the_stop_text_stays(tokenizers: Mapping[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level"]
    ids = tokenizer.encode("<call>it</call>Obs")
    assert tokenizer.pieces(before_stop(asked("Obs"), tokenizer, ids)) == ["<call>", "it", "</call>"]


@pytest.mark.parametrize("name", ["bytes", "byte_level", "byte_fallback"])
@given(
    text=st.text("cal it.Ob观", max_size=30),
    stop=st.lists(st.text("a .Ob观", min_size=1, max_size=3), min_size=1, max_size=3),
    include_stop=st.booleans(),
    data=st.data(),
)
def test_the_tokens_have_the_text_of_the_answer_and_do_not_depend_on_how_they_come(
    tokenizers: Mapping[str, Tokenizer],
    name: str,
    text: str,
    stop: list[str],
    include_stop: bool,
    data: st.DataObject,
) -> None:
    made, metadata = tokenizers[name], asked(*stop, include_stop=include_stop)
    ids = made.encode(text)
    answer = answer_text(metadata, made)
    expected = answer.feed(ids) + answer.finish()
    at = data.draw(st.integers(0, len(ids)))
    reader, singly = BeforeStop(metadata, made), BeforeStop(metadata, made)
    early = reader.take(ids[:at])
    through = [*early, *reader.take(ids[at:]), *reader.end()]
    assert [each for id in ids for each in singly.take([id])] + singly.end() == through
    assert read(made, [*through, *reader.rest]) == expected
    assert tuple(through) == ids[: len(through)]
    assert expected.startswith(read(made, early))
