"""Which models stay in host memory, and in which tier."""

from collections.abc import Mapping
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from qlm.agents.host_memory import Bedding, Holding, HostMemory, SwapCost, bed
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier

A, B, C = (ModelId(name) for name in "abc")
SIZES = {A: 10, B: 20, C: 30}
PROCESS = 2


def warm_only(sizes: Mapping[ModelId, int]) -> dict[ModelId, SwapCost]:
    """Models to which a process without weights is worth nothing."""
    return {model: SwapCost(weights_bytes=size) for model, size in sizes.items()}


def lasting(size: int, *, warm_s: float = 2.0, reload_s: float = 5.0, cold_s: float = 45.0) -> SwapCost:
    """A model with the times of one of 16 GB."""
    return SwapCost(
        weights_bytes=size, process_bytes=PROCESS, warm_s=warm_s, reload_s=reload_s, cold_s=cold_s
    )


def asleep(*models: ModelId) -> Holding:
    return Holding(asleep=dict.fromkeys(models, SwapTier.WARM))


def test_the_least_recently_used_make_room() -> None:
    costs = warm_only(SIZES)
    assert bed(C, asleep(A, B), costs, 60).stop == ()
    assert bed(C, asleep(A, B), costs, 50).stop == (A,)
    assert bed(C, asleep(A, B), costs, 49).stop == (A, B)[:2]


def test_a_model_larger_than_the_memory_is_stopped_itself_and_costs_no_other_its_place() -> None:
    bedding = bed(C, asleep(A, B), warm_only(SIZES), 29)
    assert bedding.tier is SwapTier.COLD and bedding.stop == ()


def test_a_model_that_does_not_fit_with_its_weights_keeps_its_process() -> None:
    costs = {model: lasting(size) for model, size in SIZES.items()}
    assert bed(C, asleep(), costs, 30) == Bedding(SwapTier.RELOAD)
    assert bed(C, asleep(), costs, PROCESS - 1) == Bedding(SwapTier.COLD)


def test_weights_in_host_memory_are_not_worth_the_process_of_another_model() -> None:
    """To keep C warm would save 3 s more than to keep its process, and cost A its 43 s."""
    costs = {model: lasting(size) for model, size in SIZES.items()}
    assert bed(C, asleep(A), costs, 40) == Bedding(SwapTier.RELOAD)


def test_weights_that_take_long_to_read_are_worth_it() -> None:
    """Of the 60 s and 59 s by which A and B are sooner warm, B's count now, A's by half."""
    costs = {A: lasting(30, cold_s=62.0, reload_s=61.0), B: lasting(30, cold_s=61.0, reload_s=60.0)}
    assert bed(B, asleep(A), costs, 40) == Bedding(SwapTier.WARM, stop=(A,))


def test_files_held_ahead_make_room_before_any_process() -> None:
    costs = {model: lasting(size) for model, size in SIZES.items()}
    held = Holding(asleep={A: SwapTier.WARM}, ahead=(B,))
    assert bed(C, held, costs, 12 + 32) == Bedding(SwapTier.WARM, drop=(B,))


def test_the_model_that_is_woken_makes_no_room() -> None:
    """Before, what makes room for the one that goes to sleep was the very one that is to serve."""
    costs = warm_only(dict.fromkeys(SIZES, 10))
    assert bed(B, asleep(A), costs, 15) == Bedding(SwapTier.WARM, stop=(A,))
    assert bed(B, asleep(A), costs, 15, coming=(A,)) == Bedding(SwapTier.COLD)
    assert bed(B, asleep(A, C), costs, 25, coming=(A,)) == Bedding(SwapTier.WARM, stop=(C,))


def test_the_files_of_the_model_that_is_woken_stay() -> None:
    costs = {model: lasting(10) for model in SIZES}
    held = Holding(asleep={A: SwapTier.WARM}, ahead=(B,))
    assert bed(C, held, costs, 12 + 12, coming=(A, B)) == Bedding(SwapTier.WARM, drop=(B,))
    assert bed(C, held, costs, 12 + 12, coming=(B, A)) == Bedding(SwapTier.RELOAD)


def test_a_model_that_has_a_turn_is_worth_all_that_it_saves() -> None:
    costs = warm_only(dict.fromkeys(SIZES, 10))
    assert bed(B, asleep(A), costs, 15, coming=(C,)).stop == (A,)
    assert bed(B, asleep(A), costs, 15, coming=(C, A)) == Bedding(SwapTier.COLD)


def test_whoever_has_no_turn_makes_room_first_then_who_has_the_last() -> None:
    names = [ModelId(name) for name in "abcdef"]
    costs = {name: SwapCost(weights_bytes=10, cold_s=1.0 + 100 * (name == "f")) for name in names}
    held = asleep(*names[:5])
    order = [bed(names[5], held, costs, 60 - 10 * n, coming=(*"cae",)).stop for n in (1, 2, 3, 4)]
    assert order == [("b",), ("b", "d"), ("b", "d", "e"), ("b", "d", "e", "a")]


def test_only_allowed_tiers_are_used() -> None:
    costs = {model: lasting(size) for model, size in SIZES.items()}
    for allowed in ({SwapTier.RELOAD}, {SwapTier.WARM}, set[SwapTier]()):
        tier = next(iter(allowed), SwapTier.COLD)
        assert HostMemory(costs, 1000, allowed).bed(A).tier is tier


def test_what_is_held_ahead_counts_against_the_memory() -> None:
    memory = HostMemory({model: lasting(size) for model, size in SIZES.items()}, 45)
    memory.slept(A, SwapTier.WARM)
    assert not memory.has_room_ahead(A), "it sleeps with its weights already"
    assert memory.has_room_ahead(C)
    memory.fetched(C)
    assert not memory.has_room_ahead(B)
    memory.dropped(C)
    assert memory.has_room_ahead(B)


@given(
    sizes=st.lists(st.integers(1, 50), min_size=2, max_size=6),
    memory=st.integers(0, 200),
    order=st.randoms(use_true_random=False),
)
def test_what_is_woken_stays_and_the_rest_fits(sizes: list[int], memory: int, order: Random) -> None:
    names = [ModelId(f"m{i}") for i in range(len(sizes))]
    costs = {name: lasting(size) for name, size in zip(names, sizes, strict=True)}
    coming = order.sample(names[1:], order.randint(1, len(names) - 1))
    ahead = tuple(order.sample(names[1:], order.randint(0, len(names) - 1)))
    held = Holding(asleep={name: SwapTier.RELOAD for name in names[1:]}, ahead=ahead)
    bedding = bed(names[0], held, costs, memory, coming=coming)
    assert coming[0] not in bedding.stop + bedding.drop
    left = Holding(
        asleep={name: tier for name, tier in held.asleep.items() if name not in bedding.stop},
        ahead=tuple(name for name in ahead if name not in bedding.drop),
    )
    if bedding.tier is not SwapTier.COLD:
        assert left.bytes(costs) + costs[names[0]].holds_bytes(bedding.tier) <= memory


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6), memory=st.integers(0, 200))
def test_what_stays_fits(sizes: list[int], memory: int) -> None:
    names = [ModelId(f"m{i}") for i in range(len(sizes))]
    weights = dict(zip(names, sizes, strict=True))
    bedding = bed(names[0], asleep(*names[1:]), warm_only(weights), memory)
    left = [weights[name] for name in names[1:] if name not in bedding.stop]
    if bedding.tier is SwapTier.WARM:
        assert sum(left) + sizes[0] <= memory
        spared = bedding.stop[-1:]
        assert not spared or sum(left) + sizes[0] + weights[spared[0]] > memory
    else:
        assert sizes[0] > memory
