"""Andes' greedy packing against the dynamic program of its Algorithm 2."""

import random
from itertools import combinations
from math import inf

import numpy as np
import pytest

from qlm.agents.batching.packing import Packing
from qlm.agents.batching.policies.andes.greedy import best_batch
from qlm.agents.batching.view import Floats
from support.andes_exact import best_exact_batch, exact_batch
from support.batch_toy import constant
from support.batch_views import Row, view

CASES = 500


def test_the_knapsack_toy_is_solved_exactly() -> None:
    gain = np.array([0.9, 0.5, 0.8, 0.6])
    value, chosen = exact_batch((300, 100, 200, 120), gain, 2, 400)
    assert value == pytest.approx(1.4) and chosen == [0, 1]
    value, chosen = exact_batch((300, 100, 200, 120), gain, 3, 420)
    assert value == pytest.approx(1.9) and chosen == [1, 2, 3]
    assert exact_batch((300, 100, 200, 120), gain, 4, 420) == (-inf, [])


def test_the_dynamic_program_agrees_with_all_subsets() -> None:
    draw = random.Random(20)
    for _ in range(100):
        count = draw.randint(1, 7)
        lengths = [draw.randint(1, 9) for _ in range(count)]
        gain = np.array([draw.random() for _ in range(count)])
        size, memory = draw.randint(1, count), draw.randint(1, 40)
        fitting = [set for set in combinations(range(count), size) if sum(lengths[i] for i in set) <= memory]
        best = max((float(sum(gain[i] for i in set)) for set in fitting), default=-inf)
        value, chosen = exact_batch(lengths, gain, size, memory)
        assert value == pytest.approx(best)
        assert not chosen or sum(gain[i] for i in chosen) == pytest.approx(best)


def _drawn(seed: int) -> tuple[list[int], Floats, int]:
    """Draw lengths in blocks of 64 tokens, gains that fall with the batch, and memory for a part of them."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(20, 41))
    tokens = np.clip(draw.lognormal(5.5, 0.7, count), 16, 1600)
    lengths = (1 + tokens // 64).astype(int)
    alone, slower = draw.random(count), draw.random(count)
    sizes = np.arange(1, count + 1)[:, None] / count
    return lengths.tolist(), alone * (1 - 0.5 * slower * sizes), int(lengths.sum() * draw.uniform(0.3, 0.9))


def test_greedy_packing_reaches_nine_tenths_of_the_exact_value_in_each_case() -> None:
    shares = []
    for seed in range(CASES):
        lengths, gain, memory = _drawn(seed)
        # A row takes its next token too.
        rows = [Row(str(row), prompt=length - 1) for row, length in enumerate(lengths)]
        shown = view(*rows, machine=constant(0.2, kv_tokens=memory))
        sizes = range(len(lengths), 0, -1)
        chosen, _ = best_batch(shown, Packing(shown, growth_blocks=0), sizes, gain[::-1])
        value = float(gain[len(chosen) - 1, chosen].sum())
        shares.append(value / best_exact_batch(lengths, gain, memory)[0])
    assert min(shares) >= 0.9
    assert np.mean(shares) >= 0.98
