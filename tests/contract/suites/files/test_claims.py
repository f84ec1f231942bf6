"""Claims: one gateway at a time, none of a dead one, and results that each claim writes alone."""

from contract.suites.files.places import Place
from qlm.gateway.files.port import Claim, Part
from qlm.gateway.files.records import BatchState
from qlm.gateway.files.storage import Storage
from support.stored_batches import add_batch

ENDPOINT = "/v1/completions"


def claimed(storage: Storage, where: str) -> Claim:
    claim = storage.batches.claim(where)
    assert claim is not None
    return claim


def finished(claim: Claim) -> None:
    claim.close()
    claim.release()


def taken_over(claim: Claim, part: Part) -> list[bytes]:
    """Take over the results of earlier claims, as the run of a batch does."""
    lines = [line for line in claim.earlier(part) if line.endswith(b"\n")]
    for line in lines:
        claim.write(part, line)
    claim.forget_earlier(part)
    return lines


async def test_one_gateway_runs_a_batch_at_a_time(place: Place) -> None:
    first, second = place.storage(), place.storage()
    _, where = add_batch(first, b"x\n", endpoint=ENDPOINT)
    claim = claimed(first, where)
    assert (claim.number, claim.renew(), claim.renew()) == (1, True, True)
    assert second.batches.claim(where) is None
    assert first.batches.claim(where) is None
    claim.release()
    later = claimed(second, where)
    assert later.number == 2
    assert not claim.renew() and later.renew()
    claim.release()  # late, and without effect on the other claim
    assert first.batches.claim(where) is None
    later.release()


async def test_a_claim_that_has_run_out_is_lost(place: Place) -> None:
    first = place.storage()
    _, where = add_batch(first, b"x\n", endpoint=ENDPOINT)
    claim = claimed(first, where)
    place.let_run_out(claim)
    later = claimed(place.storage(), where)
    assert later.number == 2 and later.renew() and not claim.renew()
    claim.release()
    later.release()


async def test_what_is_not_there_cannot_be_claimed(place: Place) -> None:
    storage = place.storage()
    _, where = add_batch(storage, b"x\n", endpoint=ENDPOINT)
    assert storage.batches.claim(where[:-4] + "0000") is None
    assert storage.batches.read(where[:-4] + "0000") is None


async def test_results_are_published_as_they_were_written(place: Place) -> None:
    storage = place.storage()
    _, where = add_batch(storage, b"x\n", endpoint=ENDPOINT)
    claim = claimed(storage, where)
    claim.begin()
    lines = [b'{"custom_id": "%d", "text": "%s"}\n' % (n, b"x" * 3000) for n in range(1000)]
    for n, line in enumerate(lines):
        claim.write("output", line)
        if n % 300 == 0:
            claim.note(BatchState(status="in_progress", completed=n + 1))
    id = claim.publish("output", "out.jsonl", 60)
    assert id is not None
    assert claim.publish("errors", "errors.jsonl", 60) is None
    made = storage.files.get("a", id)
    assert made is not None
    assert (made.name, made.purpose, made.size_bytes) == ("out.jsonl", "batch_output", sum(map(len, lines)))
    with storage.files.open("a", id) as file:
        assert file.read() == b"".join(lines)
    assert storage.files.get("b", id) is None
    finished(claim)


async def test_a_later_claim_goes_on_with_the_lines_of_earlier_ones(place: Place) -> None:
    first = place.storage()
    _, where = add_batch(first, b"x\n", endpoint=ENDPOINT)
    claims = [claimed(first, where)]
    claims[0].begin()
    claims[0].write("output", b'{"custom_id": "1"}\n')
    claims[0].write("errors", b'{"custom_id": "2"}\n')
    claims[0].note(BatchState(status="in_progress", total=4, completed=1, failed=1))
    place.let_run_out(claims[0])
    claims.append(claimed(place.storage(), where))
    claims[1].begin()
    assert taken_over(claims[1], "output") == [b'{"custom_id": "1"}\n']
    claims[1].write("output", b'{"custom_id": "3"}\n')
    claims[1].note(BatchState(status="in_progress", total=4, completed=2))
    place.let_run_out(claims[1])  # before it took over the errors
    third = place.storage()
    claims.append(claimed(third, where))
    claims[2].begin()
    assert taken_over(claims[2], "output") == [b'{"custom_id": "1"}\n', b'{"custom_id": "3"}\n']
    assert taken_over(claims[2], "errors") == [b'{"custom_id": "2"}\n']
    assert list(claims[2].earlier("output")) == []
    id = claims[2].publish("output", "out.jsonl", 60)
    assert id is not None
    with third.files.open("a", id) as file:
        assert file.read() == b'{"custom_id": "1"}\n{"custom_id": "3"}\n'
    for claim in claims:
        finished(claim)


async def test_an_orderly_stop_loses_no_lines(place: Place) -> None:
    first, second = place.storage(), place.storage()
    _, where = add_batch(first, b"x\n", endpoint=ENDPOINT)
    claim = claimed(first, where)
    claim.begin()
    claim.write("output", b'{"custom_id": "1"}\n')
    finished(claim)
    later = claimed(second, where)
    later.begin()
    assert taken_over(later, "output") == [b'{"custom_id": "1"}\n']
    finished(later)
