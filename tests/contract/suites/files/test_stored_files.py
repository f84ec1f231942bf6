"""Files: whole or absent, by tenant, for a time."""

import os

import pytest

from contract.suites.files.places import Place
from qlm.gateway.files.records import StoredFile
from support.stored_batches import add_file

PIECE = b"0123456789" * 1000


async def test_a_file_is_read_as_it_was_written_from_any_offset(place: Place) -> None:
    storage, content = place.storage(), os.urandom(3_000_000)
    made = add_file(storage, content)
    assert made.size_bytes == len(content)
    with place.storage().files.open("a", made.id) as file:
        assert file.read() == content
        file.seek(1_234_567)
        assert file.read(100) == content[1_234_567:1_234_667]
        assert b"".join(file) == content[1_234_667:]


async def test_an_empty_file_is_a_file(place: Place) -> None:
    made = add_file(place.storage(), b"")
    assert made.size_bytes == 0
    with place.storage().files.open("a", made.id) as file:
        assert file.read() == b""


async def test_files_are_listed_newest_first_with_what_is_known_of_them(place: Place) -> None:
    storage = place.storage()
    first = add_file(storage, PIECE, name="à b.jsonl", lifetime_s=7200)
    place.clock.extra_s = 2
    second = add_file(storage, b"x")
    other = place.storage().files
    assert other.page("a")[0] == [second, first]
    assert (other.get("a", first.id), first.name) == (first, "à b.jsonl")
    assert first.expires_s == first.created_s + 7200
    assert other.used_bytes("a") == len(PIECE) + 1


async def test_files_are_listed_in_parts(place: Place) -> None:
    storage = place.storage()
    made: list[StoredFile] = []
    for number in range(5):
        place.clock.extra_s = 2 * number
        made.insert(0, add_file(storage, PIECE, lifetime_s=60 if number == 2 else 3600))
    files = place.storage().files
    assert files.page("a", limit=2) == (made[:2], True)
    assert files.page("a", made[1].id, 2) == (made[2:4], True)
    assert files.page("a", made[3].id, 2) == (made[4:], False)
    assert files.page("a", limit=5, purpose="batch") == (made, False)
    oldest = made[::-1]
    assert files.page("a", limit=2, oldest_first=True) == (oldest[:2], True)
    assert files.page("a", oldest[1].id, 2, oldest_first=True) == (oldest[2:4], True)
    assert files.page("a", oldest[3].id, 2, oldest_first=True) == (oldest[4:], False)
    assert files.page("a", limit=5, purpose="batch_output") == ([], False)
    place.clock.extra_s = 66  # one has expired
    assert files.page("a", made[1].id, 2) == (made[3:], False)
    assert files.page("a", made[3].id, 2, oldest_first=True) == ([made[1], made[0]], False)
    files.delete("a", made[0].id)
    for unknown in (made[0].id, made[2].id, "x"):
        with pytest.raises(LookupError):
            files.page("a", unknown)
        with pytest.raises(LookupError):
            files.page("a", unknown, oldest_first=True)
    with pytest.raises(LookupError):
        files.page("b", made[1].id)


async def test_content_is_no_file_before_it_is_kept(place: Place) -> None:
    storage = place.storage()
    incoming = storage.files.incoming("a")
    incoming.write(PIECE)
    assert storage.files.page("a")[0] == []
    incoming.discard()
    incoming.discard()
    assert (storage.files.page("a")[0], place.content()) == ([], [])


async def test_discarding_leaves_what_was_kept(place: Place) -> None:
    made = add_file(place.storage(), PIECE)  # which discards at last
    with place.storage().files.open("a", made.id) as file:
        assert file.read() == PIECE


async def test_a_deleted_file_is_gone(place: Place) -> None:
    storage = place.storage()
    made, kept = add_file(storage, PIECE), add_file(storage, b"x")
    assert storage.files.delete("a", made.id)
    for files in (storage.files, place.storage().files):
        assert not files.delete("a", made.id)
        assert files.get("a", made.id) is None
        assert files.page("a")[0] == [kept]
        with pytest.raises(FileNotFoundError):
            files.open("a", made.id)
    assert not any(made.id in name for name in place.content())


async def test_an_expired_file_is_gone(place: Place) -> None:
    storage = place.storage()
    made, kept = add_file(storage, PIECE, lifetime_s=60), add_file(storage, b"x", lifetime_s=3600)
    place.clock.extra_s = 61
    assert storage.files.get("a", made.id) is None
    assert storage.files.page("a")[0] == [kept]
    storage.files.sweep()
    assert not any(made.id in name for name in place.content())
    assert storage.files.get("a", kept.id) == kept


async def test_a_tenant_has_its_own_files_only(place: Place) -> None:
    storage = place.storage()
    made = add_file(storage, PIECE, tenant="a/b")
    for other in ("a", "a/b ", "", "../a/b", "b"):
        assert storage.files.get(other, made.id) is None
        assert storage.files.page(other)[0] == []
        assert storage.files.used_bytes(other) == 0
        assert not storage.files.delete(other, made.id)
        with pytest.raises(FileNotFoundError):
            storage.files.open(other, made.id)
    assert storage.files.get("a/b", made.id) == made


async def test_what_is_no_id_names_no_file(place: Place) -> None:
    storage = place.storage()
    made = add_file(storage, PIECE)
    for id in ("", "file-", f"{made.id}.json", f"../files/{made.id}", made.id.upper(), f"{made.id}\n"):
        assert storage.files.get("a", id) is None
        assert not storage.files.delete("a", id)
    assert storage.files.page("a")[0] == [made]
