"""Reader of per-request logs: names, times, order, and one error for each bad row."""

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qlm.cli.profiling.request_log import NAMES, fitted_to, log_source_text, read_request_log
from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.builtin import builtin_profiles
from qlm.rct_estimator.profiles.profile import Source, SourceKind
from qlm.simulator.evaluation.request_log import RequestLog
from qlm.simulator.prefixes import UNSHARED

HEADER = "arrival_s,prompt_tokens,output_tokens,first_token_s,end_s"
ROWS = "10.5,100,3,10.75,11.0\n10,50,1,10.125,10.125\n"


def _read(tmp_path: Path, text: str, name: str = "served.csv") -> RequestLog:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return read_request_log(path)


def _times(log: RequestLog) -> list[list[int]]:
    return [column.tolist() for column in (log.arrival_ns, log.first_token_ns, log.end_ns)]


def test_rows_are_sorted_by_arrival_and_count_from_the_first(tmp_path: Path) -> None:
    log = _read(tmp_path, f"{HEADER}\n{ROWS}")
    assert _times(log) == [[0, 500_000_000], [125_000_000, 750_000_000], [125_000_000, 1_000_000_000]]
    assert log.prompt_tokens.tolist() == [50, 100]
    assert log.lines.tolist() == [3, 2]
    assert log.prefix.tolist() == [UNSHARED, UNSHARED]
    assert log.level is None


def test_json_lines_and_dates_and_durations_tell_the_same(tmp_path: Path) -> None:
    plain = _read(tmp_path, f"{HEADER}\n{ROWS}")
    rows = [line.split(",") for line in ROWS.splitlines()]
    objects = [dict(zip(HEADER.split(","), map(float, row), strict=True)) for row in rows]
    for row in objects:
        row |= {key: int(row[key]) for key in ("prompt_tokens", "output_tokens")}
    lines = _read(tmp_path, "\n\n".join(json.dumps(row) for row in objects), "served.jsonl")

    def date(seconds: str) -> str:
        return datetime.fromtimestamp(1_700_000_000 + float(seconds), UTC).isoformat(timespec="milliseconds")

    dates = "\n".join(",".join([date(a), p, o, date(f), date(e)]) for a, p, o, f, e in rows)
    waits = "\n".join(f"{a},{p},{o},{float(f) - float(a)},{float(e) - float(a)}" for a, p, o, f, e in rows)
    dated = _read(tmp_path, f"{HEADER}\n{dates}\n")
    waited = _read(tmp_path, f"timestamp,input_len,output_len,ttft,latency\n{waits}\n")
    for other in (lines, dated, waited):
        assert _times(other) == _times(plain)
        assert other.output_tokens.tolist() == plain.output_tokens.tolist()


def test_the_first_name_of_a_column_counts(tmp_path: Path) -> None:
    log = _read(tmp_path, f"timestamp,{HEADER}\n99,{ROWS.splitlines()[1]}\n0,{ROWS.splitlines()[0]}\n")
    assert log.arrival_ns.tolist() == [0, 500_000_000]


def test_levels_are_apart_and_each_starts_at_its_first_request(tmp_path: Path) -> None:
    text = f"{HEADER},rate\n0,1,1,1,1,10\n5,2,1,6,6,9\n7,3,1,8,8,10\n"
    levels = dict(_read(tmp_path, text).levels())
    assert list(levels) == ["9", "10"]
    assert levels["9"].arrival_ns.tolist() == [0]
    assert levels["9"].first_token_ns.tolist() == [1_000_000_000]
    assert levels["10"].prompt_tokens.tolist() == [1, 3]


def test_prefixes_are_numbered_by_their_ids(tmp_path: Path) -> None:
    text = f"{HEADER},prefix_id,prefix_tokens\n0,9,1,1,1,a,4\n0,9,1,1,1,,\n1,9,1,2,2,b,9\n1,9,1,2,2,a,2\n"
    log = _read(tmp_path, text)
    first, none, other, again = log.prefix.tolist()
    assert (none, again) == (UNSHARED, first)
    assert len({first, other, UNSHARED}) == 3
    assert log.prefix_tokens.tolist() == [4, 0, 9, 2]


def _object(**more: object) -> str:
    row = {"arrival_s": 1, "prompt_tokens": 9, "output_tokens": 1, "ttft_s": 1, "e2e_s": 1}
    return json.dumps(row | more)


def test_prefixes_of_json_lines_count_whose_first_line_has_none(tmp_path: Path) -> None:
    log = _read(tmp_path, f"{_object()}\n{_object(prefix_id='a', prefix_tokens=4)}\n", "served.jsonl")
    assert log.prefix_tokens.tolist() == [0, 4]
    assert [number != UNSHARED for number in log.prefix.tolist()] == [False, True]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("5,0,1,6,7", "4: prompt_tokens is 0"),
        ("5,1,0,6,7", "4: output_tokens is 0"),
        ("5,1,1.5,6,7", "4: output_tokens is '1.5'"),
        ("5,1,1,4,7", "4: first token is"),
        ("5,1,1,6,5.5", "4: end is"),
        ("5,1,1,,7", "4: first_token_s is ''"),
        ("nan,1,1,6,7", "4: arrival_s is 'nan'"),
        ("2024-01-01 00:00:00,1,1,6,7", "4: arrival_s is"),
        ("5,1,1,6", "4 is '5,1,1,6'"),
    ],
)
def test_a_bad_row_is_one_error_with_its_line(tmp_path: Path, row: str, expected: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        _read(tmp_path, f"{HEADER}\n{ROWS}{row}\n")
    assert f"served.csv:{expected}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "header"),
        (HEADER, "a header without rows"),
        ("arrival_s,prompt_tokens,output_tokens,end_s\n0,1,1,1\n", "also a column first_token_s or ttft_s"),
        (f"{HEADER},prefix_id\n0,1,1,1,1,a\n", "both or none of prefix_id and prefix_tokens"),
        (f"{HEADER},prefix_id,prefix_tokens\n0,1,1,1,1,,1\n", ":2: prefix_tokens is 1"),
        (f"{HEADER},prefix_id,prefix_tokens\n0,1,1,1,1,a,2\n", ":2: prefix_tokens is 2"),
        (f"{HEADER},load\n0,1,1,1,1,\n", ":2: load is ''"),
        (f"{_object()}\n{_object(load=2)}\n", ":1: load is None"),
        ('{"arrival_s": 1}\n[]\n', ":2 is"),
        ('{"arrival_s": 1\n', ":1 is"),
        (
            '{"arrival":0,"prompt_tokens":true,"output_tokens":1,"ttft":1,"e2e":1}',
            ":1: prompt_tokens is True",
        ),
        ('{"arrival":0,"prompt_tokens":1,"output_tokens":1,"ttft":1,"e2e":1}\n{}', ":2: arrival is None"),
    ],
)
def test_an_unusable_file_is_one_error(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        _read(tmp_path, text)
    assert expected in str(caught.value)


def test_a_missing_file_and_bytes_that_are_no_text_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="a file that can be read"):
        read_request_log(tmp_path / "none.csv")
    (tmp_path / "bytes.csv").write_bytes(b"arrival_s\n\xff\xfe\n")
    with pytest.raises(InvalidValueError, match="UTF-8"):
        read_request_log(tmp_path / "bytes.csv")


def test_no_name_means_two_things() -> None:
    every = [name for names in NAMES.values() for name in names]
    assert len(every) == len(set(every))


def test_a_profile_fitted_to_the_log_is_recognised_by_digest_and_by_name(tmp_path: Path) -> None:
    log, profile = _read(tmp_path, f"{HEADER}\n{ROWS}"), builtin_profiles()[0]
    assert log.sha256 == hashlib.sha256((tmp_path / "served.csv").read_bytes()).hexdigest()
    assert fitted_to(profile, log) == ()
    fitted = Source(SourceKind.DERIVED, f"Fitted to {log_source_text(log)}.")
    fitted_profile = replace(profile, sources={**profile.sources, "kv_ms": fitted})
    assert fitted_to(fitted_profile, log) == ("kv_ms",)
    assert fitted_to(fitted_profile, replace(log, name="moved.csv")) == ("kv_ms",)
    assert fitted_to(fitted_profile, replace(log, sha256="0" * 64)) == ("kv_ms",)
    assert fitted_to(fitted_profile, replace(log, name="other.csv", sha256="0" * 64)) == ()


_REQUEST = st.tuples(
    st.integers(0, 10**14), st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**13),
    st.integers(0, 10**13),
)  # fmt: skip


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_REQUEST, min_size=1, max_size=20))
def test_nanoseconds_survive_the_file(tmp_path: Path, requests: list[tuple[int, int, int, int, int]]) -> None:
    lines = [
        f"{a / 1e9:.9f},{p},{o},{(a + wait) / 1e9:.9f},{(a + wait + rest) / 1e9:.9f}"
        for a, p, o, wait, rest in requests
    ]
    log = _read(tmp_path, "\n".join([HEADER, *lines]))
    rows = sorted(requests, key=lambda row: row[0])
    start = rows[0][0]
    assert np.abs(log.arrival_ns - [row[0] - start for row in rows]).max() <= 1
    assert np.abs(log.end_ns - [row[0] + row[3] + row[4] - start for row in rows]).max() <= 1
    assert log.prompt_tokens.tolist() == [row[1] for row in rows]
