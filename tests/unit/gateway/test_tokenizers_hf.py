import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from qlm.domain.errors import InvalidValueError
from qlm.gateway.core.tokenizer import ChatMessage
from qlm.gateway.tokenizers.hf import PENDING_TOKENS_MAX, HfTokenizer

SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
CORPUS = [
    "the queue holds many requests, naïve ones and older ones",
    "größere Gruppen — zuerst 日本語 🙂",
] * 20
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONVERSATION = [ChatMessage(role="user", content="the queue")]


def byte_level() -> Tokenizer:
    """In the manner of GPT-2, Llama 3, Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def byte_fallback() -> Tokenizer:
    """In the manner of Llama 2 and Mistral: `▁` for blanks, `<0xE2>` for bytes no token has."""
    pieces = [
        *SPECIAL,
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"▁abcdeghilmnoqrstuy",
        "▁t",
        "h",
        "▁q",
        "ue",
    ]
    vocabulary = {piece: id for id, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "t"), ("▁", "q"), ("u", "e")], byte_fallback=True))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {"byte_level": byte_level, "byte_fallback": byte_fallback}


def saved(
    folder: Path,
    make: Callable[[], Tokenizer] = byte_level,
    *,
    template: str | None = TEMPLATE,
    **config: Any,
) -> HfTokenizer:
    make().save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": template} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return HfTokenizer(folder, lambda: datetime(2030, 1, 31))


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HfTokenizer:
    return saved(tmp_path_factory.mktemp(request.param), KINDS[request.param])


@given(data=st.data())
def test_text_does_not_depend_on_the_cutting(tokenizer: HfTokenizer, data: st.DataObject) -> None:
    id = st.integers(0, tokenizer.vocabulary - 1)
    tail = data.draw(st.lists(id, max_size=8))
    ids = data.draw(st.lists(id, max_size=40))
    skip = data.draw(st.booleans())
    cut = data.draw(st.integers(0, len(ids)))
    whole = tokenizer.detokenizer(tail, skip_special_tokens=skip).feed(ids)
    pieces = tokenizer.detokenizer(tail, skip_special_tokens=skip)
    assert pieces.feed(ids[:cut]) + pieces.feed(ids[cut:]) == whole


@pytest.mark.parametrize("text", ["the queue holds", "größere 日本語 🙂 Gruppen", " leading blank"])
def test_an_answer_reads_as_it_was_written(tokenizer: HfTokenizer, text: str) -> None:
    prompt = tokenizer.encode_chat(CONVERSATION)
    both = tokenizer.encode_chat([ChatMessage(role="user", content=text)])
    ids = [id for id in both if id >= len(SPECIAL)]
    got = tokenizer.detokenizer(prompt[-8:], skip_special_tokens=True).feed(ids)
    assert got.strip() == text.strip()


def test_special_tokens_show_only_if_wanted(tokenizer: HfTokenizer) -> None:
    (end,) = tokenizer.eos_ids
    assert tokenizer.detokenizer((), skip_special_tokens=True).feed([end]) == ""
    assert tokenizer.detokenizer((), skip_special_tokens=False).feed([end]).strip() == "</s>"


def test_the_blank_between_prompt_and_answer_is_kept(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path, byte_fallback)
    prompt = tokenizer.encode("the")
    answer = tokenizer.encode("queue")  # its first token begins with a blank
    assert tokenizer.detokenizer(prompt[-8:], skip_special_tokens=True).feed(answer) == " queue"


def test_a_run_of_broken_bytes_stays_cheap(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path, byte_fallback)
    lead = tokenizer._rust.token_to_id("<0xF0>")
    assert lead is not None
    detokenizer = tokenizer.detokenizer((), skip_special_tokens=True)
    text = detokenizer.feed([lead] * 10 * PENDING_TOKENS_MAX)
    assert text.count("\ufffd") >= 9 * PENDING_TOKENS_MAX
    assert len(detokenizer._pending) <= PENDING_TOKENS_MAX  # type: ignore[attr-defined]


def test_completions_get_a_beginning_of_sequence_and_chat_only_that_of_its_template(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path)
    bos = tokenizer.encode("")[0]
    assert tokenizer.encode("the").count(bos) == 1
    assert tokenizer.encode_chat(CONVERSATION).count(bos) == 1


def test_add_bos_token_overrules_tokenizer_json(tmp_path: Path) -> None:
    assert saved(tmp_path, add_bos_token=False).encode("") == ()
    with_both = saved(tmp_path, add_bos_token=True, add_eos_token=True)
    assert with_both.encode("") == (0, 1)


def test_the_template_sees_special_tokens_and_the_generation_prompt(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path)
    text = tokenizer.detokenizer((), skip_special_tokens=False).feed(tokenizer.encode_chat(CONVERSATION))
    assert text == "<s><|user|>the queue</s><|assistant|>"


def test_a_template_in_a_file_of_its_own_wins(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file")
    tokenizer = saved(tmp_path)
    assert (
        tokenizer.detokenizer((), skip_special_tokens=True).feed(tokenizer.encode_chat(CONVERSATION))
        == "file"
    )


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    tokenizer = saved(tmp_path, chat_template=templates)
    assert (
        tokenizer.detokenizer((), skip_special_tokens=True).feed(tokenizer.encode_chat(CONVERSATION))
        == "plain"
    )


def test_without_a_template_chat_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="no chat template"):
        saved(tmp_path, template=None).encode_chat(CONVERSATION)


@pytest.mark.parametrize(
    ("generation", "model", "eos_ids"),
    [
        (None, None, {1}),
        ({"eos_token_id": [2, 3]}, {"eos_token_id": 9}, {1, 2, 3}),
        (None, {"eos_token_id": 9}, {1, 9}),
    ],
    ids=["tokenizer only", "generation config wins", "model config"],
)
def test_end_tokens_come_from_tokenizer_and_generation_config(
    tmp_path: Path, generation: dict[str, Any] | None, model: dict[str, Any] | None, eos_ids: set[int]
) -> None:
    for name, content in (("generation_config", generation), ("config", model)):
        if content is not None:
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert saved(tmp_path).eos_ids == eos_ids


def test_the_vocabulary_is_the_larger_of_tokenizer_and_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 512}')
    assert saved(tmp_path).vocabulary == 512


def test_truncation_in_tokenizer_json_is_not_applied(tmp_path: Path) -> None:
    def truncating() -> Tokenizer:
        tokenizer = byte_level()
        tokenizer.enable_truncation(2)
        return tokenizer

    assert len(saved(tmp_path, truncating).encode("the queue holds many requests")) > 3


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"tokenizer\.json"):
        HfTokenizer(tmp_path)


def test_tokens_are_shown_as_the_vocabulary_has_them(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path)
    plain = tokenizer.encode("the queue", add_special_tokens=False)
    assert "".join(tokenizer.pieces(plain)) == "theĠqueue"
    assert tokenizer.pieces(tokenizer.encode("the queue")) == ["<s>", *tokenizer.pieces(plain)]
    assert tokenizer.pieces([10**6]) == [""]
