"""Batches: added, found by their tenant, changed, ended once, deleted."""

from dataclasses import replace

import pytest

from contract.suites.files.places import Place
from qlm.gateway.files.port import Claim
from qlm.gateway.files.records import BatchState
from support.stored_batches import add_batch

ENDPOINT = "/v1/completions"
LINES = b"one\ntwo\nthree\n"


async def test_a_batch_is_found_by_its_tenant_and_by_operators(place: Place) -> None:
    storage = place.storage()
    first, _ = add_batch(storage, LINES, endpoint=ENDPOINT, clock=place.clock)
    place.clock.extra_s = 2
    second, _ = add_batch(storage, LINES, endpoint=ENDPOINT, clock=place.clock)
    theirs, _ = add_batch(storage, LINES, endpoint=ENDPOINT, tenant="b", clock=place.clock)
    batches = place.storage().batches
    assert [each.spec for each in batches.page("a")[0]] == [second, first]
    assert (batches.count_open("a"), batches.count_open("b"), batches.count_open("c")) == (2, 1, 0)
    assert batches.get("a", theirs.id) is None
    assert batches.get("b", f"../b/{theirs.id}") is None
    found = batches.find(theirs.id)
    assert found is not None and found.spec == theirs
    assert batches.find("batch_none") is None
    assert {each.spec.id for each in batches.newest()} == {first.id, second.id, theirs.id}
    assert set(batches.open_places()) == {first.id, second.id, theirs.id}


async def test_batches_are_listed_in_parts(place: Place) -> None:
    storage = place.storage()
    ids: list[str] = []
    for number in range(5):
        place.clock.extra_s = 2 * number
        spec, _ = add_batch(storage, LINES, endpoint=ENDPOINT, clock=place.clock)
        ids.insert(0, spec.id)
    batches = place.storage().batches

    def part(after: str | None, limit: int) -> tuple[list[str], bool]:
        found, more = batches.page("a", after, limit)
        return [each.spec.id for each in found], more

    assert part(None, 2) == (ids[:2], True)
    assert part(ids[1], 2) == (ids[2:4], True)
    assert part(ids[3], 2) == (ids[4:], False)
    assert part(None, 5) == (ids, False)
    assert [each.spec.id for each in batches.newest(3)] == ids[:3]
    for tenant, unknown in (("a", "batch_none"), ("b", ids[0])):
        with pytest.raises(LookupError):
            batches.page(tenant, unknown)


async def test_a_batch_is_cancelled_paused_and_resumed(place: Place) -> None:
    storage, other = place.storage(), place.storage()
    spec, where = add_batch(storage, LINES, endpoint=ENDPOINT)
    claim = other.batches.claim(where)
    assert claim is not None and not claim.paused() and not claim.cancelled()
    storage.batches.pause("a", spec.id)
    paused = other.batches.get("a", spec.id)
    assert claim.paused() and paused is not None and paused.pause_s is not None
    storage.batches.resume("a", spec.id)
    storage.batches.resume("a", spec.id)
    resumed = other.batches.get("a", spec.id)
    assert not claim.paused() and resumed is not None and resumed.pause_s is None
    storage.batches.cancel("a", spec.id)
    storage.batches.cancel("a", spec.id)
    cancelled = other.batches.get("a", spec.id)
    assert claim.cancelled() and cancelled is not None and cancelled.cancel_s is not None
    assert abs(cancelled.cancel_s - place.clock.now_ns() / 10**9) < 60
    claim.release()


async def test_the_deletion_of_its_input_does_not_stop_a_batch(place: Place) -> None:
    storage = place.storage()
    spec, where = add_batch(storage, LINES, endpoint=ENDPOINT)
    assert storage.files.delete("a", spec.input_file_id)
    claim = place.storage().batches.claim(where)
    assert claim is not None
    with claim.input() as file:
        assert file.readlines() == [b"one\n", b"two\n", b"three\n"]
    claim.release()


async def test_nothing_is_left_of_a_batch_whose_input_is_gone(place: Place) -> None:
    storage = place.storage()
    spec, _ = add_batch(storage, LINES, endpoint=ENDPOINT)
    storage.files.delete("a", spec.input_file_id)
    before = place.content()
    with pytest.raises(FileNotFoundError):
        storage.batches.add(replace(spec, id=storage.batches.new_id()))
    assert place.content() == before
    assert set(storage.batches.open_places()) == {spec.id}


async def test_a_batch_ends_once(place: Place) -> None:
    storage = place.storage()
    spec, where = add_batch(storage, LINES, endpoint=ENDPOINT)
    first = storage.batches.claim(where)
    assert first is not None
    first.note(BatchState(status="in_progress", total=3, completed=1))
    place.let_run_out(first)
    second = _claimed(place, where)
    assert second.number == 2 and second.state.completed == 1
    second.note(BatchState(status="in_progress", total=3, completed=2))
    first.note(BatchState(status="in_progress", total=9))
    found = storage.batches.get("a", spec.id)
    assert found is not None and found.state.completed == 2
    # The first end counts, also one under an old claim.
    assert first.end(BatchState(status="completed", output_file_id="file-1"))
    assert not second.end(BatchState(status="cancelled", output_file_id="file-2"))
    assert not first.end(BatchState(status="cancelled"))
    assert not second.renew()
    ended = storage.batches.get("a", spec.id)
    assert ended is not None and ended.ended
    assert (ended.status, ended.state.output_file_id) == ("completed", "file-1")
    storage.batches.close(where)
    storage.batches.close(where)
    assert (storage.batches.open_places(), storage.batches.count_open("a")) == ({}, 0)
    assert storage.batches.claim(where) is None
    assert storage.batches.get("a", spec.id) == ended
    first.release()
    second.release()


async def test_an_ended_batch_is_deleted_in_time(place: Place) -> None:
    storage = place.storage()
    ended, where = add_batch(storage, LINES, endpoint=ENDPOINT)
    runs, _ = add_batch(storage, LINES, endpoint=ENDPOINT)
    claim = storage.batches.claim(where)
    assert claim is not None and claim.end(BatchState(status="failed"))
    claim.release()
    storage.batches.close(where)
    storage.batches.sweep(100)
    assert storage.batches.get("a", ended.id) is not None
    place.clock.extra_s = 101
    storage.batches.sweep(100)
    for batches in (storage.batches, place.storage().batches):
        assert batches.get("a", ended.id) is None
        assert [each.spec.id for each in batches.page("a")[0]] == [runs.id]
    assert not any(ended.id in name for name in place.content())


def _claimed(place: Place, where: str) -> Claim:
    claim = place.storage().batches.claim(where)
    assert claim is not None
    return claim
