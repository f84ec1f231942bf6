"""Shared prefixes: ids of blocks, and tokens that a cache can find."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from qlm.simulator.engine.generation import PREFIX_TOKENS
from qlm.simulator.prefixes import UNSHARED, block_ids, covered_tokens, prefix_numbers, shared_tokens
from qlm.simulator.workload.cells import LENGTH_TOKENS_MAX

_PREFIXES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5 * PREFIX_TOKENS)), max_size=12)


@given(_PREFIXES)
def test_the_shared_tokens_are_the_longest_common_with_an_earlier_request(
    requests: list[tuple[int, int]],
) -> None:
    numbers = np.array([number for number, _ in requests], dtype=np.int64)
    tokens = np.array([length for _, length in requests], dtype=np.int64)
    expected = sum(
        min(length, max((earlier for other, earlier in requests[:at] if other == number), default=0))
        for at, (number, length) in enumerate(requests)
    )
    assert shared_tokens(block_ids(numbers, tokens), tokens.tolist()) == expected


def test_blocks_after_one_that_differs_share_nothing() -> None:
    assert shared_tokens(((1, 2, 3), (1, 9, 3)), [3 * PREFIX_TOKENS] * 2) == PREFIX_TOKENS


def test_numbers_and_the_ids_of_the_longest_prompt_fit_64_bits() -> None:
    numbers = prefix_numbers([f"{number}" for number in range(2000)])
    assert len(set(numbers.tolist())) == 2000
    largest = np.array([numbers.max()])
    ids = block_ids(largest, np.array([LENGTH_TOKENS_MAX]))[0]
    assert ids[0] >= 0 and ids[-1] < 2**63
    assert len(ids) == -(-LENGTH_TOKENS_MAX // PREFIX_TOKENS)
    following = block_ids(largest + 1, np.array([1]))[0]
    assert following[0] > ids[-1]


def test_an_empty_id_shares_nothing_and_equal_ids_are_equal() -> None:
    one, none, again = prefix_numbers(["a", "", "a"]).tolist()
    assert none == UNSHARED and one == again != UNSHARED


def test_whole_blocks_cover_no_more_than_the_prompt() -> None:
    assert covered_tokens(((1, 2), (1,), ()), np.array([600, 600, 9])).tolist() == [600, 512, 0]
