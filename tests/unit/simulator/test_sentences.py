"""Emulated models answer in sentences, which the last ids of a text alone continue."""

import random
import re

import pytest

from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.simulator.engine.generation import hashed_generation
from qlm.simulator.engine.token_chain import TAIL_IDS, Sentences, TokenChain, digests

SENTENCE = re.compile(r"[A-Z][a-z]+( [a-z]+){3,} [a-z]+\.")


def answer(prompt: str, tokens: int, sampling: Sampling | None = None) -> str:
    start = hashed_generation(block_tokens=16, context_tokens=100_000, mean_output_tokens=1e9)
    wanted = sampling or Sampling(max_tokens=tokens, ignore_eos=True)
    call = EngineCall(call_id="r", prompt_ids=tuple(prompt.encode()), sampling=wanted)
    return bytes(start(call).token_ids(0, tokens)).decode()


@pytest.mark.parametrize("prompt", ["user: why?\nassistant:", "Tell me", " ", "The queue serv"])
def test_an_answer_is_sentences(prompt: str) -> None:
    whole = answer(prompt, 4000)
    sentences = re.findall(r"[A-Z][^.]*\.", whole)
    assert len(sentences) > 20
    assert all(SENTENCE.fullmatch(each) for each in sentences)
    assert len(set(sentences)) > 20
    assert " ".join(sentences) in whole


def test_answers_to_different_prompts_differ() -> None:
    assert answer("one", 100) != answer("two", 100)


@pytest.mark.parametrize("seed", range(40))
def test_the_last_ids_decide_what_may_follow(seed: int) -> None:
    rng = random.Random(seed)
    pieces = ["The ", "queue", "question.", " ", "a long ", "requests", "x", "\n", "because", "é", "."]
    ids: list[int] = []
    walked = Sentences(())
    for _ in range(60):
        for token_id in (EOS_ID,) if rng.random() < 0.05 else rng.choice(pieces).encode():
            ids.append(token_id)
            walked.add(token_id)
            assert Sentences(ids[-TAIL_IDS:]).next_bytes() == walked.next_bytes()


def test_a_resumed_answer_goes_on_as_if_it_had_never_stopped() -> None:
    prompt = tuple(b"Once upon a time. ")
    chain = TokenChain(digests(prompt, 1)[-1], prompt, 1e9)
    whole = [chain.next_id((EOS_ID,)) for _ in range(300)]
    for cut in range(0, 280, 7):
        before = (*prompt, *whole[:cut])
        resumed = TokenChain(digests(before, 1)[-1], before, 1e9)
        assert [resumed.next_id((EOS_ID,)) for _ in range(20)] == whole[cut : cut + 20]


def test_forbidden_letters_are_left_out() -> None:
    forbidding = Sampling(max_tokens=500, ignore_eos=True, min_tokens=500, stop_token_ids=tuple(b"e "))
    text = answer("Tell me", 500, forbidding)
    assert not set("e ") & set(text)
