"""Length statistics: the last window is complete, and the value is the same object until an answer ends."""

from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.length_histogram import LENGTH_BINS, LengthHistogram, is_complete, length_bin
from qlm.domain.outcome import Outcome
from qlm.store.core.length_stats import LengthStats

Answer = tuple[int, Outcome]
answers = st.lists(st.tuples(st.integers(0, 200_000), st.sampled_from(Outcome)))


def _counted(stats_of: list[Answer]) -> LengthHistogram:
    rows = [[0] * LENGTH_BINS for _ in range(4)]
    for tokens, outcome in stats_of:
        kind = 0 if is_complete(outcome) else 2
        rows[kind][length_bin(tokens)] += 1
        rows[kind + 1][length_bin(tokens)] += tokens
    return LengthHistogram(*map(tuple, rows))


@given(answers, st.integers(1, 7))
def test_the_last_one_to_two_windows_are_counted_exactly(seen: list[Answer], window: int) -> None:
    stats = LengthStats()
    for tokens, outcome in seen:
        stats.count(tokens, outcome, window)
    said = [answer for answer in seen if answer[0]]
    turns = max(0, (len(said) - 1) // window - 1)
    kept = said[turns * window :]
    assert len(kept) >= min(len(said), window)
    assert stats.value == _counted(kept)


def test_the_value_is_the_same_object_until_an_answer_ends() -> None:
    stats = LengthStats()
    before = stats.value
    assert stats.value is before
    stats.count(0, Outcome.CANCELLED, 10)
    assert stats.value is before
    stats.count(3, Outcome.STOP, 10)
    assert stats.value is not before
    assert stats.value is stats.value
