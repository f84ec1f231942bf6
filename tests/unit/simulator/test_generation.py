from typing import Any

import pytest

from qlm.domain.errors import InvalidValueError
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.simulator.engine.generation import Generation, Script, scripted_generation


def generation(
    script: Script, prompt: int = 10, *, block_tokens: int = 16, context: int = 1000, **sampling: Any
) -> Generation:
    start = scripted_generation(lambda call: script, block_tokens=block_tokens, context_tokens=context)
    wanted = Sampling(**({"max_tokens": 100} | sampling))
    return start(EngineCall(call_id="r", prompt_ids=(0,) * prompt, sampling=wanted))


@pytest.mark.parametrize(
    ("tokens", "sampling", "expected"),
    [
        (30, {}, (30, "stop")),
        (100, {}, (100, "stop")),
        (101, {}, (100, "length")),
        (30, {"min_tokens": 50}, (51, "stop")),
        (30, {"min_tokens": 100}, (100, "length")),
        (30, {"ignore_eos": True}, (100, "length")),
        (5000, {"max_tokens": 5000}, (990, "length")),
    ],
)
def test_the_limits_of_the_request_hold_for_scripted_answers(
    tokens: int, sampling: dict[str, Any], expected: tuple[int, str]
) -> None:
    text = generation(Script(output_tokens=tokens, base=0), **sampling)
    assert (text.output_tokens, text.finish) == expected
    assert text.token_ids(3, 5) == (0, 0)


def test_a_script_can_say_how_the_answer_ends() -> None:
    assert generation(Script(output_tokens=7, base=0, finish="length")).finish == "length"


def test_a_resumed_text_has_the_digests_of_the_whole() -> None:
    whole = generation(Script(output_tokens=90, base=1000), 10)
    rest = generation(Script(output_tokens=50, base=1000), 50)
    assert list(whole.digests) == list(rest.digests) == list(range(1000, 1006))


@pytest.mark.parametrize("block_tokens", [16, 100, 512, 700])
def test_texts_share_the_blocks_of_equal_prefix_ids_only(block_tokens: int) -> None:
    def digests(base: int, *ids: int, prompt: int = 1600) -> list[int]:
        script = Script(output_tokens=90, base=base, prefix_ids=ids, prefix_tokens=prompt)
        return list(generation(script, prompt, block_tokens=block_tokens, context=4000).digests)

    one, other = digests(0, 5, 6, 7, 8), digests(1 << 20, 5, 6, 9, 10)
    equal = 1024 // block_tokens
    assert one[:equal] == other[:equal]
    assert not set(one[equal:]) & set(other)
    assert len(set(one)) == len(one) == 1690 // block_tokens
    assert digests(0, 5, 6, 7, 8)[: 1600 // block_tokens] == one[: 1600 // block_tokens]


def test_a_resume_keeps_the_digests_of_prefix_and_answer() -> None:
    script = Script(output_tokens=90, base=0, prefix_ids=(1, 2), prefix_tokens=700)
    whole = generation(script, 700, context=4000)
    rest = generation(
        Script(output_tokens=40, base=0, prefix_ids=(1, 2), prefix_tokens=700), 750, context=4000
    )
    assert whole.digests == rest.digests


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"output_tokens": 0}, "output_tokens"),
        ({"base": -1}, "base"),
        ({"prefix_tokens": 513, "prefix_ids": (1,)}, "prefix_tokens"),
    ],
)
def test_unusable_scripts_are_refused_by_name(fields: dict[str, int], named: str) -> None:
    with pytest.raises(InvalidValueError, match=named):
        Script(**({"output_tokens": 1, "base": 0} | fields))  # type: ignore[arg-type]
