from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.byte_tokens import EOS_ID
from qlm.gateway.core.tokenizer import ChatMessage
from qlm.gateway.tokenizers.byte import ByteTokenizer

TOKENIZER = ByteTokenizer()


def test_a_conversation_ends_where_the_assistant_begins() -> None:
    ids = TOKENIZER.encode_chat(
        [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Hi")]
    )
    assert bytes(ids) == b"system: Be brief.\nuser: Hi\nassistant:"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_text_survives_encoding_and_decoding(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.detokenizer((), skip_special_tokens=True).feed((*ids, EOS_ID)) == text


@given(st.lists(st.integers(0, EOS_ID), max_size=50))
def test_any_bytes_decode_alike_however_they_are_cut(ids: list[int]) -> None:
    whole = TOKENIZER.detokenizer((), skip_special_tokens=True).feed(ids)
    pieces = TOKENIZER.detokenizer((), skip_special_tokens=True)
    assert "".join(pieces.feed([id]) for id in ids) == whole
