"""Which models stay warm."""

from hypothesis import given
from hypothesis import strategies as st

from qlm.agents.host_memory import bed
from qlm.domain.ids import ModelId

A, B, C = (ModelId(name) for name in "abc")
SIZES = {A: 10, B: 20, C: 30}


def test_the_least_recently_used_make_room() -> None:
    assert bed(C, [A, B], SIZES, 60).stop == ()
    assert bed(C, [A, B], SIZES, 50).stop == (A,)
    assert bed(C, [A, B], SIZES, 49).stop == (A, B)[:2]


def test_a_model_larger_than_the_memory_is_stopped_itself_and_costs_no_other_its_place() -> None:
    bedding = bed(C, [A, B], SIZES, 29)
    assert not bedding.keep and bedding.stop == ()


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6), memory=st.integers(0, 200))
def test_what_stays_fits(sizes: list[int], memory: int) -> None:
    names = [ModelId(f"m{i}") for i in range(len(sizes))]
    weights = dict(zip(names, sizes, strict=True))
    bedding = bed(names[0], names[1:], weights, memory)
    left = [weights[name] for name in names[1:] if name not in bedding.stop]
    if bedding.keep:
        assert sum(left) + sizes[0] <= memory
        spared = bedding.stop[-1:]
        assert not spared or sum(left) + sizes[0] + weights[spared[0]] > memory
    else:
        assert sizes[0] > memory
