"""The turns of batches: by tenant, and by the ends of their windows."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from qlm.gateway.batches.turns import in_turns, only_ends, to_yield
from qlm.gateway.files.records import Batch, BatchSpec, BatchState


def spec(tenant: str, expires_s: int, id: str = "") -> BatchSpec:
    return BatchSpec(
        id=id or f"{tenant}{expires_s}",
        tenant=tenant,
        endpoint="/v1/completions",
        window="1h",
        input_file_id="file-1",
        created_s=0,
        expires_s=expires_s,
        metadata={},
        output_kept_s=3600,
    )


def ids(specs: Sequence[BatchSpec]) -> list[str]:
    return [each.id for each in specs]


def test_batches_of_a_tenant_run_by_the_ends_of_their_windows() -> None:
    assert ids(in_turns([spec("a", 3), spec("a", 1), spec("a", 2)], ())) == ["a1", "a2", "a3"]


def test_tenants_take_turns() -> None:
    waiting = [spec("a", 1), spec("a", 2), spec("a", 3), spec("b", 8), spec("b", 9)]
    assert ids(in_turns(waiting, ())) == ["a1", "b8", "a2", "b9", "a3"]
    assert ids(in_turns(waiting, [spec("a", 0)])) == ["b8", "a1", "b9", "a2", "a3"]


def test_a_tenant_with_many_yields_the_one_whose_window_ends_last() -> None:
    running = [spec("a", 5), spec("a", 7), spec("a", 6), spec("c", 9)]
    assert to_yield(spec("b", 1), running) == spec("a", 7)
    assert to_yield(spec("c", 1), running) == spec("a", 7)
    assert to_yield(spec("a", 1), running) is None
    assert to_yield(spec("b", 1), [spec("a", 1), spec("c", 1)]) is None
    assert to_yield(spec("b", 1), []) is None


TENANTS = st.sampled_from("abc")


@given(st.lists(TENANTS, max_size=12), TENANTS)
def test_what_yields_does_not_come_back_at_once(tenants: list[str], tenant: str) -> None:
    running = [spec(each, n, f"{n}") for n, each in enumerate(tenants)]
    first = spec(tenant, 0, "first")
    if (yields := to_yield(first, running)) is not None:
        running.remove(yields)
        assert to_yield(yields, [*running, first]) is None


def test_a_batch_only_ends_once_it_is_cancelled_or_its_window_is_over() -> None:
    batch = Batch(spec=spec("a", 10), state=BatchState(), cancel_s=None, ended=False)
    cancelled = Batch(spec=spec("a", 10), state=BatchState(), cancel_s=1, ended=False)
    assert [only_ends(batch, 9), only_ends(batch, 10), only_ends(cancelled, 0)] == [False, True, True]
