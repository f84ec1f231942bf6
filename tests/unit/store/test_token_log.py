"""Token log: what is written is read again, whatever the end of the process or the disk did to it."""

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.formats.extensions import NO_LOG_EXTENSIONS, LogExtensions
from qlm.domain.ids import RequestId, TokenIds
from qlm.store.core.effects import Logged
from qlm.store.core.state import RestoredLog
from qlm.store.embedded.restored_logs import find
from qlm.store.embedded.token_log import SEGMENTS_MAX, SLOW_FOR_NS, SLOW_NS, Extended, TokenLog
from qlm.store.embedded.token_records import MAGIC, tokens_record

INCARNATION = 5
A, B = RequestId("a"), RequestId("bé")
TWICE = LogExtensions(preemptions=2)

Write = Callable[[int, bytes], int]


def _nothing(id: RequestId) -> RestoredLog | None:
    return None


def _log(path: Path, write: Write = os.write) -> TokenLog:
    return TokenLog(path, INCARNATION, _nothing, write=write)


def _sync(log: TokenLog) -> None:
    while (moved := log.moved()) is not None:
        moved.sync()
        log.synced(moved)


def _restored(tokens: Iterable[int]) -> RestoredLog:
    return RestoredLog(tuple(tokens), 1_000, NO_LOG_EXTENSIONS)


def _part(id: RequestId, offset: int, *token_ids: int) -> Logged:
    return Logged(id, offset, token_ids, 1_000 + offset)


def _files(path: Path) -> list[Path]:
    return sorted(path.parent.glob("*-tokens.*"))


def _found(path: Path) -> dict[RequestId, TokenIds]:
    found = find(path, INCARNATION)
    assert found.damage == ()
    return {id: tuple(log.token_ids) for id, log in found.logs.items()}


def _sample(path: Path) -> list[tuple[int, dict[RequestId, TokenIds]]]:
    """Write a log; return its size and the logs in it after each write."""
    log = _log(path)
    (file,) = _files(path)
    seen = [(len(MAGIC), dict[RequestId, TokenIds]())]
    steps: list[tuple[tuple[Logged, ...], tuple[Extended, ...], dict[RequestId, TokenIds]]] = [
        ((_part(A, 0, 1), _part(B, 0, 7)), (), {A: (1,), B: (7,)}),
        ((_part(A, 1, 2, 2**32 - 1),), ((A, TWICE),), {A: (1, 2, 2**32 - 1), B: (7,)}),
        ((_part(B, 1, 8), _part(A, 3, 4)), (), {A: (1, 2, 2**32 - 1, 4), B: (7, 8)}),
    ]
    for parts, extended, logs in steps:
        log.write(parts, extended)
        seen.append((file.stat().st_size, logs))
    return seen


def test_what_was_written_is_read(tmp_path: Path) -> None:
    _sample(tmp_path / "q")
    found = find(tmp_path / "q", INCARNATION)
    assert found.logs == {
        A: RestoredLog((1, 2, 2**32 - 1, 4), 1_000, TWICE),
        B: RestoredLog((7, 8), 1_000, NO_LOG_EXTENSIONS),
    }


def test_a_log_cut_at_any_byte_has_all_whole_writes_before_it(tmp_path: Path) -> None:
    seen = _sample(tmp_path / "q")
    (file,) = _files(tmp_path / "q")
    data = file.read_bytes()
    for size in range(len(data) + 1):
        file.write_bytes(data[:size])
        before = [logs for end, logs in seen if end <= size]
        assert _found(tmp_path / "q") == (before[-1] if before else {}), size


def test_a_flipped_byte_is_named_and_changes_no_token(tmp_path: Path) -> None:
    path = tmp_path / "q"
    seen = _sample(path)
    (file,) = _files(path)
    data = file.read_bytes()
    for at in range(len(data)):
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        found = find(path, INCARNATION)
        assert f"{file}: the token log is damaged at byte" in found.damage[0], at
        whole = [logs for end, logs in seen if end <= at]
        assert {id: log.token_ids for id, log in found.logs.items()} == (whole[-1] if whole else {}), at


def test_a_damaged_file_is_kept_and_said_once(tmp_path: Path) -> None:
    path = tmp_path / "q"
    _sample(path)
    (file,) = _files(path)
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    damaged = file.read_bytes()
    found = find(path, INCARNATION)
    found.keep()
    found.put_away()
    assert [each.name for each in _files(path)] == [f"{file.name}.damaged"]
    assert _files(path)[0].read_bytes() == damaged
    assert find(path, INCARNATION).damage == ()


def test_a_log_that_lacks_tokens_ends_before_them_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "q"
    log = _log(path)
    log.write([_part(A, 0, 1), _part(A, 2, 3), _part(A, 3, 4), _part(B, 0, 9)], ())
    found = find(path, INCARNATION)
    assert found.damage == (f"{path}: its token log lacks tokens of 1 unfinished requests",)
    assert {id: each.token_ids for id, each in found.logs.items()} == {A: (1,), B: (9,)}


def test_short_writes_are_completed(tmp_path: Path) -> None:
    log = _log(tmp_path / "q", lambda fd, data: os.write(fd, data[:3]))
    log.write([_part(A, 0, 1, 2)], ())
    log.write([_part(A, 2, 3)], ())
    assert _found(tmp_path / "q") == {A: (1, 2, 3)}


class FullDisk:
    """Writes so many more bytes, then fails as a full disk does."""

    def __init__(self) -> None:
        self.room_bytes = 10_000

    def write(self, fd: int, data: bytes) -> int:
        if not self.room_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(fd, data[: self.room_bytes])
        self.room_bytes -= written
        return written


@pytest.mark.parametrize("room_bytes", [0, 1, 11, 12, 40])
def test_nothing_is_left_of_a_write_that_fails(tmp_path: Path, room_bytes: int) -> None:
    path, disk = tmp_path / "q", FullDisk()
    log = _log(path, disk.write)
    log.write([_part(A, 0, 1)], ())
    (file,) = _files(path)
    before = file.read_bytes()
    disk.room_bytes = room_bytes
    with pytest.raises(StoreUnavailableError, match=rf"{file} cannot be written: No space left"):
        log.write([_part(A, 1, 2), _part(B, 0, 7)], ())
    assert file.read_bytes() == before
    disk.room_bytes = 10_000
    log.write([_part(A, 1, 3)], ())
    assert _found(path) == {A: (1, 3)}


def test_a_torn_write_that_cannot_be_removed_is_followed_by_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, disk = tmp_path / "q", FullDisk()
    log = _log(path, disk.write)
    log.write([_part(A, 0, 1)], ())

    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "ftruncate", refuse)
    disk.room_bytes = 20
    with pytest.raises(StoreUnavailableError):
        log.write([_part(A, 1, 2)], ())
    disk.room_bytes = 10_000
    log.write([_part(A, 1, 3)], ())
    assert len(_files(path)) == 2
    assert _found(path) == {A: (1, 3)}


def test_a_deleted_file_is_replaced_with_all_that_was_in_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, disk = tmp_path / "q", FullDisk()
    logs = {id: RestoredLog((1, 2), 1_000, TWICE) for id in (A, B)}
    log = TokenLog(path, INCARNATION, logs.get, write=disk.write)
    log.write([_part(A, 0, 1, 2), _part(B, 0, 1, 2)], [(A, TWICE), (B, TWICE)])
    (file,) = _files(path)
    file.unlink()
    for room_bytes in (0, 30):
        disk.room_bytes = room_bytes
        with pytest.raises(StoreUnavailableError, match="No space left"):
            log.write([_part(A, 2, 3)], ())
    assert (_files(path), caplog.messages) == ([], [])
    disk.room_bytes = 10_000
    log.write([_part(A, 2, 3)], ())
    log.write([_part(A, 3, 4)], ())
    (message,) = caplog.messages
    assert message.startswith(f"the token log {file} was deleted")
    assert find(path, INCARNATION).logs == {A: logs[A]._replace(token_ids=(1, 2, 3, 4)), B: logs[B]}


def test_segments_of_earlier_incarnations_are_void(tmp_path: Path) -> None:
    _sample(tmp_path / "q")
    found = find(tmp_path / "q", INCARNATION + 1)
    assert (found.logs, found.damage) == ({}, ())
    found.put_away()
    assert _files(tmp_path / "q") == []


def test_a_file_goes_when_all_its_requests_have_ended_oldest_first(tmp_path: Path) -> None:
    path = tmp_path / "q"
    log = TokenLog(path, INCARNATION, _nothing, segment_bytes=1)
    for n in range(3):
        log.write([_part(RequestId(str(n)), 0, n)], ())
    assert [file.suffix for file in _files(path)] == [".2", ".3", ".4"]
    log.ended([RequestId("1")])
    log.write((), ())
    assert [file.suffix for file in _files(path)] == [".2", ".3", ".4", ".5"]
    log.ended([RequestId("0")])
    assert [file.suffix for file in _files(path)] == [".2", ".3", ".4", ".5"]
    log.write((), ())
    assert [file.suffix for file in _files(path)] == [".4", ".5", ".6"]
    log.write([_part(RequestId("3"), 0, 3)], ())
    assert _found(path) == {RequestId("2"): (2,), RequestId("3"): (3,)}
    log.delete()
    assert _files(path) == []


def test_a_kill_between_an_end_and_the_next_write_is_no_damage(tmp_path: Path) -> None:
    """The request has tokens in two files; without its end, neither may be deleted."""
    path = tmp_path / "q"
    log = TokenLog(path, INCARNATION, _nothing, segment_bytes=1)
    log.write([_part(A, 0, 1)], ())
    log.write([_part(A, 1, 2)], ())
    log.ended([A])
    assert _found(path) == {A: (1, 2)}
    prepared = log.prepare((), ())
    assert _found(path) == {A: (1, 2)}
    log.put(prepared)
    assert _found(path) == {}
    log.write((), ())
    assert _found(path) == {}
    assert [file.suffix for file in _files(path)] == [".5"]


def test_a_failed_write_of_an_end_keeps_the_files(tmp_path: Path) -> None:
    path, disk = tmp_path / "q", FullDisk()
    log = TokenLog(path, INCARNATION, _nothing, write=disk.write, segment_bytes=1)
    log.write([_part(A, 0, 1)], ())
    log.write([_part(A, 1, 2)], ())
    log.ended([A])
    prepared = log.prepare((), ())
    disk.room_bytes = 0
    with pytest.raises(StoreUnavailableError):
        log.put(prepared)
    assert _found(path) == {A: (1, 2)}


def test_a_request_that_has_ended_by_the_journal_may_lack_tokens(tmp_path: Path) -> None:
    """A power failure lost its end, but not that the file with its first tokens was deleted."""
    path = tmp_path / "q"
    log = _log(path)
    log.write([_part(A, 2, 3), _part(B, 4, 5)], ())
    assert find(path, INCARNATION, {A, B}).damage == ()
    assert find(path, INCARNATION, {A}).damage == (
        f"{path}: its token log lacks tokens of 1 unfinished requests",
    )


def test_a_long_request_does_not_keep_all_files(tmp_path: Path) -> None:
    path, tokens = tmp_path / "q", list[int]()

    def whole(id: RequestId) -> RestoredLog | None:
        return RestoredLog(tuple(tokens), 1_000, TWICE) if id == A else None

    log = TokenLog(path, INCARNATION, whole, segment_bytes=1)
    log.write([_part(A, 0, 0)], [(A, TWICE)])
    tokens.append(0)
    for n in range(30):
        short = RequestId(f"short {n}")
        log.write([_part(short, 0, n)], ())
        log.ended([short])
        _sync(log)
        assert len(_files(path)) <= SEGMENTS_MAX
    log.write([_part(A, 1, 1)], ())
    found = find(path, INCARNATION)
    assert found.logs == {A: RestoredLog((0, 1), 1_000, TWICE)}


def test_a_file_is_kept_until_what_was_moved_from_it_is_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "q"
    rows: dict[RequestId, list[int]] = {A: [1], B: []}
    log = TokenLog(path, INCARNATION, lambda id: _restored(rows[id]), segment_bytes=1)
    log.write([_part(A, 0, 1)], ())
    first = _files(path)[-1]
    moved = None
    while moved is None:
        log.write([_part(B, len(rows[B]), 7)], ())
        rows[B].append(7)
        moved = log.moved()
    assert first.exists()
    log.ended([A])
    log.write([_part(B, len(rows[B]), 9)], ())
    assert first.exists()
    moved.sync()
    log.synced(moved)
    assert not first.exists()
    assert _found(path) == {B: (*rows[B], 9)}


def test_live_logs_above_a_segment_are_not_written_again_for_each_token(tmp_path: Path) -> None:
    path, bytes_written = tmp_path / "q", 0
    rows = {RequestId(f"long {n}"): list[int]() for n in range(20)}

    def write(fd: int, data: bytes) -> int:
        nonlocal bytes_written
        bytes_written += len(data)
        return os.write(fd, data)

    def whole(id: RequestId) -> RestoredLog:
        return RestoredLog(tuple(rows[id]), 0, NO_LOG_EXTENSIONS)

    log = TokenLog(path, INCARNATION, whole, write=write, segment_bytes=1_000)
    for n in range(300):
        log.write([_part(id, n, n) for id in rows], ())
        _sync(log)
        for row in rows.values():
            row.append(n)
    record_bytes = len(tokens_record(_part(RequestId("long 10"), 0, 1)))
    assert sum(map(len, rows.values())) * 4 > 20 * 1_000
    assert bytes_written < 3 * 300 * len(rows) * record_bytes
    assert len(_files(path)) <= SEGMENTS_MAX
    assert _found(path) == {id: tuple(row) for id, row in rows.items()}


class SteppedClock:
    """Monotonic clock that only writes let pass."""

    def __init__(self) -> None:
        self.at_ns = 0
        self.writes_take_ns = 0

    def monotonic_ns(self) -> int:
        return self.at_ns

    def write(self, fd: int, data: bytes) -> int:
        self.at_ns += self.writes_take_ns
        return os.write(fd, data)


def test_two_slow_writes_in_a_row_are_noticed(tmp_path: Path) -> None:
    clock = SteppedClock()
    log = TokenLog(tmp_path / "q", 5, _nothing, write=clock.write, monotonic_ns=clock.monotonic_ns)
    for offset, (ms, slow) in enumerate([(6, False), (1, False), (6, False), (6, True), (1, True)]):
        clock.writes_take_ns = ms * 1_000_000
        log.write([_part(A, offset, 1)], ())
        assert log.slow() is slow, offset
    clock.at_ns += SLOW_FOR_NS
    assert not log.slow()


def test_moving_logs_is_no_slow_write(tmp_path: Path) -> None:
    clock, took_ns = SteppedClock(), 0
    log = TokenLog(
        tmp_path / "q",
        INCARNATION,
        lambda _: _restored((1,)),
        write=clock.write,
        monotonic_ns=clock.monotonic_ns,
        segment_bytes=1,
    )
    for offset in range(60):
        clock.writes_take_ns = (SLOW_NS + 1) * (offset % 2)
        before_ns = clock.at_ns
        log.write([_part(A, offset, 1)], ())
        _sync(log)
        took_ns = max(took_ns, clock.at_ns - before_ns)
        assert not log.slow()
    assert took_ns > 3 * SLOW_NS  # a file was begun, logs were moved, tokens were written


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(("grow", "grow", "grow", "extend", "end"))), max_size=40
)


@given(steps=STEPS, segment_bytes=st.sampled_from((1, 150, 10_000)))
def test_any_history_is_read_as_it_was(steps: list[tuple[str, str]], segment_bytes: int) -> None:
    logs: dict[RequestId, RestoredLog] = {}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "q"
        log = TokenLog(path, INCARNATION, logs.get, segment_bytes=segment_bytes)
        for n, (name, step) in enumerate(steps):
            id = RequestId(name)
            before = logs.get(id, RestoredLog((), n, NO_LOG_EXTENSIONS))
            match step:
                case "grow":
                    part = Logged(id, len(before.token_ids), (n, n + 1), n)
                    log.write([part], ())
                    first_ns = before.first_token_ns if before.token_ids else n
                    logs[id] = RestoredLog((*before.token_ids, n, n + 1), first_ns, before.extensions)
                case "extend":
                    extensions = LogExtensions(preemptions=n)
                    log.write((), [(id, extensions)])
                    logs[id] = before._replace(extensions=extensions)
                case _:
                    log.ended([id])
                    logs.pop(id, None)
        log.write((), ())
        _sync(log)
        found = find(path, INCARNATION)
        assert found.damage == ()
        assert found.logs == {id: each for id, each in logs.items() if each.token_ids}
        log.delete()


def test_log_probabilities_are_written_once_and_restored_whole(tmp_path: Path) -> None:
    path = tmp_path / "q"
    log = _log(path)
    pieces = [LogExtensions(preemptions=1, logprobs_at=((at, "AAAA"),)) for at in range(40)]
    for at, extensions in enumerate(pieces):
        log.write([_part(A, at, 7)], [(A, extensions)])
    (file,) = _files(path)
    assert file.read_bytes().count(b"AAAA") == len(pieces)
    found = find(path, INCARNATION).logs[A].extensions
    assert (found.preemptions, found.logprobs_at) == (1, tuple((at, "AAAA") for at in range(40)))
