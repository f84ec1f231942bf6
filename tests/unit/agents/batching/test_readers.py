"""Columns of readers against the timeline of one reader."""

import random
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.agents.batching.readers import ReaderColumns
from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import Timeline


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_each_row_is_a_timeline(seed: int) -> None:
    draw = random.Random(seed)
    columns, timelines, now_s = ReaderColumns(), list[Timeline](), 0.0
    for row in range(5):
        reader = Reader(draw.uniform(0.1, 2.0), draw.choice([2.0, 10.0, 33.0]))
        columns.begin(row, 0.0, reader.ttft_s, reader.tokens_per_s, seen=0, late_s=0.0)
        timelines.append(Timeline(reader))
    for _ in range(6):
        now_s += draw.uniform(0.0, 3.0)
        rows = draw.sample(range(5), draw.randint(1, 5))
        if draw.random() < 0.3:
            columns.deliver(np.array(rows), now_s)
            for row in rows:
                timelines[row].deliver(1, now_s)
            continue
        tokens, step_s, growth_s = draw.randint(1, 40), draw.uniform(0.01, 0.3), draw.choice([0.0, 0.004])
        columns.deliver_run(np.array(rows), tokens, now_s, step_s, growth_s)
        for row in rows:
            timelines[row].deliver_run(tokens, now_s, step_s, growth_s)
        now_s += tokens * step_s + tokens * tokens * growth_s
    every = np.arange(5)
    assert columns.tokens[every].tolist() == [each.tokens for each in timelines]
    assert columns.late_s[every] == pytest.approx([each.late_s for each in timelines])
    assert columns.late_sum_s[every] == pytest.approx([each.late_sum_s for each in timelines])
    assert columns.read_end_s(every) == pytest.approx([each.read_end_s for each in timelines])


def test_without_a_pace_nothing_is_late_after_the_first_token() -> None:
    columns, every = ReaderColumns(), np.arange(2)
    columns.begin(0, 5.0, inf, inf, seen=0, late_s=0.0)
    columns.begin(1, 5.0, 1.0, 0.0, seen=0, late_s=0.0)
    assert columns.read_end_s(every).tolist() == [5.0, 5.0]
    columns.deliver_run(every, 3, 8.0, 100.0)
    assert columns.late_s[every].tolist() == [0.0, 2.0]
    assert columns.late_sum_s[every].tolist() == [0.0, 6.0]
    assert columns.read_end_s(every).tolist() == [5.0, inf]


def test_a_row_goes_on_where_an_earlier_generation_stopped() -> None:
    columns = ReaderColumns()
    columns.begin(70, 100.0, 1.0, 10.0, seen=20, late_s=2.0)
    assert columns.read_end_s(np.array([70])).tolist() == [105.0]
    columns.deliver(np.array([70]), 106.0)
    assert columns.late_s[70] == 3.0
