"""Counting lengths: the last window is never lost, and what is read stays the same until something ends."""

from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.length_histogram import LENGTH_BINS, LengthHistogram, came_to_its_end, length_bin
from qlm.domain.outcome import Outcome
from qlm.store.length_tally import LengthTally

Answer = tuple[int, Outcome]
answers = st.lists(st.tuples(st.integers(0, 200_000), st.sampled_from(Outcome)))


def _counted(tally_of: list[Answer]) -> LengthHistogram:
    rows = [[0] * LENGTH_BINS for _ in range(4)]
    for tokens, outcome in tally_of:
        kind = 0 if came_to_its_end(outcome) else 2
        rows[kind][length_bin(tokens)] += 1
        rows[kind + 1][length_bin(tokens)] += tokens
    return LengthHistogram(*map(tuple, rows))


@given(answers, st.integers(1, 7))
def test_the_last_one_to_two_windows_are_counted_exactly(seen: list[Answer], window: int) -> None:
    tally = LengthTally()
    for tokens, outcome in seen:
        tally.count(tokens, outcome, window)
    said = [answer for answer in seen if answer[0]]
    turns = max(0, (len(said) - 1) // window - 1)
    kept = said[turns * window :]
    assert len(kept) >= min(len(said), window)
    assert tally.value == _counted(kept)


def test_the_value_is_the_same_object_until_an_answer_ends() -> None:
    tally = LengthTally()
    before = tally.value
    assert tally.value is before
    tally.count(0, Outcome.CANCELLED, 10)
    assert tally.value is before
    tally.count(3, Outcome.STOP, 10)
    assert tally.value is not before
    assert tally.value is tally.value
