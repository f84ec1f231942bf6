"""`make bench ARGS="batch-beside"`: what counts as one answer, and when a goal is missed."""

import json
from dataclasses import replace

import pytest

from benchmarks.batch_beside import TOKENS, Result, answered_once, input_file

HELD = Result(
    lines=10, engine_rps=20.0, offered_rps=12.0, requests=100, met_alone=1.0, met_beside=0.991, batch_rps=7.2,
    restarted=5, once=10, wrong=0,
)  # fmt: skip


def answer(id: str, tokens: int = TOKENS) -> str:
    return json.dumps({"custom_id": id, "response": {"body": {"usage": {"completion_tokens": tokens}}}})


def test_lines_of_the_input_have_ids_and_prompts_of_their_own() -> None:
    lines = [json.loads(each) for each in input_file(12).splitlines()]
    assert [each["custom_id"] for each in lines] == [f"{n}" for n in range(12)]
    assert len({tuple(each["body"]["prompt"]) for each in lines}) == 12


@pytest.mark.parametrize(
    ("lines", "once"),
    [
        (["0", "1", "2"], 3),
        (["0", "1", "1", "2"], 2),
        (["0", "2"], 2),
        (["0", "1", "3"], 2),
    ],
)
def test_a_line_counts_if_it_has_one_answer(lines: list[str], once: int) -> None:
    assert answered_once("\n".join(map(answer, lines)), 3) == once


def test_an_answer_that_was_cut_is_none() -> None:
    assert answered_once("\n".join([answer("0"), answer("1", TOKENS - 1)]), 2) == 1


def test_each_goal_is_judged() -> None:
    assert HELD.missed == []
    assert HELD.share == pytest.approx(0.9)
    assert "2.0 points" in replace(HELD, met_beside=0.98).missed[0]
    assert "had 89%" in replace(HELD, batch_rps=7.12).missed[0]
    assert "1 lines" in replace(HELD, wrong=1).missed[0]
