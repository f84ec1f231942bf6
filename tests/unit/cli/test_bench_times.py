"""Times in result files: what cannot be is refused by field and row, and the rounding of clocks is not."""

import json
from pathlib import Path
from typing import Any

import pytest

from qlm.cli.bench.formats.reading import read_runs
from qlm.cli.bench.possible import Fields, possible
from qlm.cli.bench.record import Chunk, Sent
from qlm.domain.errors import InvalidValueError

NEVER = float("inf")
FIELDS = Fields("sent", "chunks", "end")


def vllm(**columns: Any) -> dict[str, Any]:
    return {
        "duration": 2.0,
        "request_throughput": 1.0,
        "input_lens": [10, 10],
        "output_lens": [3, 3],
        "start_times": [100.0, 101.0],
        "ttfts": [0.2, 0.2],
        "itls": [[0.1, 0.1], [0.1, 0.1]],
        "errors": ["", ""],
    } | columns


def perf(**changes: Any) -> list[dict[str, Any]]:
    times = changes.pop("times", [10.1, 10.2, 10.3])
    info = {"input_tokens": 5, "output_tokens": 3, "output_token_times": times}
    request = {"start_time": 10.0, "end_time": 11.0, "info": info, "error": None}
    return [request, request | changes]


def aiperf(end_ns: int) -> dict[str, Any]:
    metrics = {
        "time_to_first_token": {"value": 200, "unit": "ms"},
        "inter_chunk_latency": {"value": [100, 100], "unit": "ms"},
        "output_sequence_length": {"value": 3, "unit": "tokens"},
    }
    start_ns = 1_000_000_000_000_000_000
    return {
        "metadata": {"request_start_ns": start_ns, "request_end_ns": start_ns + end_ns},
        "metrics": metrics,
    }


def cancelled(end_ns: int) -> dict[str, Any]:
    record = aiperf(end_ns)
    return record | {"metadata": record["metadata"] | {"was_cancelled": True}, "metrics": {}}


def saved(**changes: Any) -> dict[str, Any]:
    request = {
        "scheduled_s": 0.0,
        "sent_s": 0.0,
        "end_s": 1.0,
        "chunk_times_s": [0.5, 1.0],
        "chunk_tokens": [1, 1],
        "error": None,
        "prompt_tokens": 1,
        "asked_tokens": 2,
    }
    run = {"seed": 1, "counting": "x", "requests": [request, request | changes]}
    return {"format": "qlm-bench", "version": 1, "runs": [run]}


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (vllm(itls=[[0.1, 0.1], [0.1, -5.0]]), r"itls\.1\.1 is -5"),
        (vllm(ttfts=[0.2, -0.2]), r"ttfts\.1 is -0\.2"),
        (vllm(duration=-2.0), r"duration is -2"),
        (vllm(queue_times=[0, -3]), r"queue_times\.1 is -3"),
        (vllm(start_times=[-1.7e308, 1.7e308]), r"start_times\.1 is inf"),
        (perf(times=[1, 2, 3]), r"0\.info\.output_token_times is '9 s before its sending'"),
        (perf(times=[10.5, 10.2, 10.3]), r"0\.info\.output_token_times.*never fall"),
        (perf(end_time=-5), r"1\.end_time is '15\.3 s before"),
        (perf(info={"response_metrics": {"output_tokens": 1, "output_token_times": [9]}}), r"1\.info\.resp"),
        (aiperf(end_ns=-5 * 10**9), r"0\.metadata\.request_end_ns is '5\.4 s before"),
        (saved(chunk_times_s=[-3.0, 1.0]), r"runs\.0\.requests\.1\.chunk_times_s is '3 s before"),
        (saved(chunk_times_s=[0.9, 0.8]), r"runs\.0\.requests\.1\.chunk_times_s.*never fall"),
        (saved(scheduled_s=0.4), r"runs\.0\.requests\.1\.sent_s is '0\.4 s before its scheduled time'"),
        (saved(end_s=0.9), r"runs\.0\.requests\.1\.end_s is '0\.1 s before"),
    ],
)
def test_impossible_times_are_refused_by_field_and_row(tmp_path: Path, document: Any, named: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document), "utf-8")
    with pytest.raises(InvalidValueError, match=rf"result\.json: {named}"):
        read_runs(path)


@pytest.mark.parametrize(
    "document",
    [
        vllm(),
        vllm(itls=[[], [0.0]], queue_times=[0, 1.5]),  # several tokens in a chunk, as with speculation
        vllm(ttfts=[0.0, 0.2], itls=[[], [0.1, 0.1]], output_lens=[0, 3], errors=["refused", ""]),
        perf(),
        perf(end_time=10.2999),
        aiperf(end_ns=399_999_000),
        saved(),
        saved(scheduled_s=1e-9, error="cut", chunk_times_s=[0.5, 0.5]),
    ],
)
def test_ordinary_files_and_the_rounding_of_clocks_are_accepted(tmp_path: Path, document: Any) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document), "utf-8")
    assert read_runs(path)


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        (Sent(scheduled_s=-NEVER, sent_s=0.0, end_s=1.0), "sent is -inf"),
        (Sent(scheduled_s=0.0, sent_s=0.0, end_s=1.0, chunks=(Chunk(float("nan"), 1),)), "chunks is nan"),
        (Sent(scheduled_s=0.0, sent_s=0.0, end_s=NEVER), "end is inf"),
        (Sent(scheduled_s=0.0, sent_s=2.0, end_s=1.0), "end is '1 s before"),
        (Sent(scheduled_s=0.0, sent_s=2.0, end_s=NEVER, error="refused"), "end is inf"),
    ],
)
def test_what_is_no_time_is_refused(sent: Sent, named: str) -> None:
    with pytest.raises(InvalidValueError, match=named):
        possible(sent, FIELDS)


@pytest.mark.parametrize(
    ("document", "end_s"),
    [
        (perf(end_time=10.15, error={"error_type": "Cut", "error_msg": ""}), 0.3),
        (perf(end_time=9.0, info=None, error={"error_type": "Refused", "error_msg": ""}), 0.0),
        (saved(end_s=0.9, error="cut"), 1.0),
        (cancelled(end_ns=-20_000_000), 0.0),
    ],
)
def test_a_failed_request_ends_no_earlier_than_its_other_times(
    tmp_path: Path, document: Any, end_s: float
) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document), "utf-8")
    (run,) = read_runs(path)
    (failed,) = (each for each in run.requests if each.error is not None)
    assert failed.end_s == pytest.approx(end_s)
