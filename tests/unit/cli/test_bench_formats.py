"""Result files of others: vLLM's own figures are found again; what has no token times is refused by name.

The two files of `bench_results` were written by `vllm bench serve` 0.32 (texts left out): one of an
emulated engine that refused long prompts, with `--max-concurrency 6`; one of a real vLLM on a CPU, of chats.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from qlm.cli.bench.formats.reading import read_runs
from qlm.cli.bench.report import Judging, report
from qlm.domain.errors import InvalidValueError

RESULTS = Path(__file__).parent / "bench_results"
LIMITS = {
    "vllm-max-concurrency.json": {"ttft": 70.0, "tpot": 16.0, "e2el": 220.0},
    "vllm-chat.json": {"ttft": 60.0, "tpot": 20.0},
}


@pytest.mark.parametrize("name", LIMITS)
def test_vllms_figures_are_found_again_in_its_detailed_file(name: str) -> None:
    printed = json.loads((RESULTS / name).read_text("utf-8"))
    found = report(read_runs(RESULTS / name), Judging(goodput_ms=LIMITS[name]))
    common = {key for key, value in found["vllm"].items() if isinstance(printed.get(key), int | float)}
    latencies = [
        f"{of}_{what}_ms" for of in ("mean", "median", "std", "p99") for what in ("ttft", "tpot", "itl")
    ]
    wanted = {
        *latencies,
        "request_goodput",
        "request_throughput",
        "output_throughput",
        "mean_e2el_ms",
        "failed",
    }
    assert wanted <= common
    for key in common:
        assert found["vllm"][key] == pytest.approx(printed[key], rel=1e-3), key


def test_requests_that_vllm_failed_or_queued_count_from_their_schedule() -> None:
    (run,) = read_runs(RESULTS / "vllm-max-concurrency.json")
    found = report([run], Judging(goodput_ms=LIMITS["vllm-max-concurrency.json"]))
    assert (found["requests"], found["failed"], found["errors"]) == (40, 17, {"Bad Request": 17})
    assert found["scheduled"]["send_delay_max_ms"] > 100
    assert found["readers"][0]["met_share"] == 23 / 40
    assert found["scheduled"]["scheduled_good_share"] < found["vllm"]["request_goodput"] * run.span_s / 40


def test_numbers_without_end_are_read_as_python_writes_them(tmp_path: Path) -> None:
    """vLLM saves `--burstiness inf`, its evenly spaced arrivals, as `Infinity`, which JSON does not have."""
    result = json.loads((RESULTS / "vllm-chat.json").read_text("utf-8"))
    even = written(tmp_path, result | {"burstiness": math.inf})
    assert "Infinity" in even.read_text("utf-8")
    assert read_runs(even) == read_runs(RESULTS / "vllm-chat.json")
    for name, values in (("ttfts", [math.nan]), ("start_times", [math.inf]), ("itls", [[math.inf]])):
        path = written(tmp_path, result | {name: values + result[name][1:]})
        with pytest.raises(InvalidValueError, match=rf"{name}\.0.* is (nan|inf)"):
            read_runs(path)


def test_a_blank_error_of_vllm_is_none(tmp_path: Path) -> None:
    result = json.loads((RESULTS / "vllm-chat.json").read_text("utf-8"))
    result["errors"][0] = " \n"
    (run,) = read_runs(written(tmp_path, result))
    assert all(each.error is None for each in run.requests)


def test_a_role_chunk_of_a_chat_answer_is_a_chunk_but_no_token() -> None:
    (run,) = read_runs(RESULTS / "vllm-chat.json")
    assert {len(each.chunks) for each in run.requests} == {25}
    assert {each.tokens for each in run.requests} == {24}
    assert all(each.chunks[-1].tokens for each in run.requests)


def test_several_appended_results_are_several_runs(tmp_path: Path) -> None:
    line = (RESULTS / "vllm-chat.json").read_text("utf-8").strip()
    (tmp_path / "two.json").write_text(f"{line}\n{line}", "utf-8")
    assert report(read_runs(tmp_path / "two.json"), Judging(resamples=0))["requests"] == 80


def written(folder: Path, *documents: Any) -> Path:
    path = folder / "result.json"
    path.write_text("\n".join(json.dumps(each) for each in documents), "utf-8")
    return path


AIPERF: dict[str, Any] = {
    "metadata": {
        "session_num": 0,
        "request_start_ns": 1_000_000_000_500_000_000,
        "request_end_ns": 1_000_000_002_000_000_000,
        "benchmark_phase": "profiling",
        "was_cancelled": False,
    },
    "metrics": {
        "input_sequence_length": {"value": 50, "unit": "tokens"},
        "time_to_first_token": {"value": 200.0, "unit": "ms"},
        "inter_chunk_latency": {"value": [100.0, 1200.0], "unit": "ms"},
        "output_sequence_length": {"value": 3, "unit": "tokens"},
    },
    "error": None,
}
AIPERF_FAILED = {
    "metadata": AIPERF["metadata"] | {"was_cancelled": True},
    "metrics": {"error_isl": {"value": 50, "unit": "tokens"}},
    "error": {"code": 499, "type": "RequestCancellationError", "message": "cancelled"},
}


def test_records_of_aiperf_are_read_with_their_failures(tmp_path: Path) -> None:
    (run,) = read_runs(written(tmp_path, AIPERF, AIPERF_FAILED))
    answer, failed = sorted(run.requests, key=lambda each: each.error or "")
    assert [each.at_s for each in answer.chunks] == pytest.approx([0.2, 0.3, 1.5])
    assert (answer.tokens, answer.prompt_tokens, answer.end_s) == (3, 50, 1.5)
    assert (failed.error, failed.answered) == ("cancelled", False)


def test_a_credit_of_aiperf_is_the_scheduled_time_and_its_warm_up_is_left_out(tmp_path: Path) -> None:
    metadata = AIPERF["metadata"] | {"credit_issued_ns": 1_000_000_000_100_000_000}
    warm = AIPERF | {"metadata": AIPERF["metadata"] | {"benchmark_phase": "warmup"}}
    (run,) = read_runs(written(tmp_path, warm, AIPERF | {"metadata": metadata}))
    (answer,) = run.requests
    assert answer.sent_s - answer.scheduled_s == pytest.approx(0.4)


def perf(**info: Any) -> dict[str, Any]:
    return {"start_time": 100.0, "end_time": 101.5, "request": "{}", "info": info, "error": None}


@pytest.mark.parametrize(
    "info",
    [
        {"input_tokens": 9, "output_tokens": 3, "output_token_times": [100.5, 100.6, 101.5]},
        {
            "input_tokens": 9,
            "response_metrics": {"output_tokens": 3, "output_token_times": [100.5, 100.6, 101.5]},
        },
    ],
)
def test_requests_of_inference_perf_are_read_in_both_of_its_forms(
    tmp_path: Path, info: dict[str, Any]
) -> None:
    failed = perf() | {"start_time": 100.2, "error": {"error_type": "HTTP Error 429", "error_msg": "full"}}
    (run,) = read_runs(written(tmp_path, [perf(**info), failed]))
    assert [each.at_s for each in run.requests[0].chunks] == pytest.approx([0.5, 0.6, 1.5])
    assert (run.requests[0].tokens, run.requests[0].prompt_tokens) == (3, 9)
    assert run.requests[1].error == "HTTP Error 429: full"


VLLM = json.loads((RESULTS / "vllm-chat.json").read_text("utf-8"))
WITHOUT_TIMES = {key: value for key, value in AIPERF["metrics"].items() if key != "inter_chunk_latency"}


def test_an_answer_of_aiperf_that_came_in_one_chunk_has_no_gaps(tmp_path: Path) -> None:
    (run,) = read_runs(written(tmp_path, AIPERF, AIPERF | {"metrics": WITHOUT_TIMES}))
    several, one = sorted(run.requests, key=lambda each: -len(each.chunks))
    assert (len(several.chunks), several.tokens) == (3, 3)
    assert [each.at_s for each in one.chunks] == pytest.approx([0.2])
    assert one.tokens == 3


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([{key: each for key, each in VLLM.items() if key != "itls"}], ["itls", "--save-detailed"]),
        ([VLLM | {"ttfts": VLLM["ttfts"][1:]}], ["ttfts", "39 values", "40"]),
        ([VLLM | {"ttfts": "none"}], ["ttfts"]),
        ([AIPERF | {"metrics": WITHOUT_TIMES}], ["inter_chunk_latency", "--streaming"]),
        ([{"request_latency": {}, "request_throughput": {}}], ["aiperf", "profile_export.jsonl"]),
        ([{"successes": {}, "load_summary": {}}], ["inference-perf", "per_request"]),
        ([[perf(output_tokens=3, output_token_times=[])]], ["output_token_times", "streaming"]),
        ([{"benchmarks": []}], ["guidellm", "first and the last"]),
        ([{"other": 1}], ["other", "qlm bench --save"]),
        ([{"format": "qlm-bench", "version": 2}], ["version", "2", "1"]),
        ([{"format": "qlm-bench", "version": 1, "runs": []}], ["without a request"]),
        ([[]], ["no request"]),
        ([VLLM | {"output_lens": [10**9] * 40}], ["output_lens.0", "100000000"]),
        ([[perf(output_tokens=10**9, output_token_times=[100.5])]], ["0.info.output_tokens", "100000000"]),
        (["text"], ["str"]),
    ],
)
def test_a_file_that_cannot_be_rated_is_refused_by_what_is_wrong(
    tmp_path: Path, documents: list[Any], words: list[str]
) -> None:
    with pytest.raises(InvalidValueError) as refused:
        read_runs(written(tmp_path, *documents))
    assert all(word in str(refused.value) for word in ("result.json", *words)), str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "not JSON", "[" * 100_000 + "NaN", '{"a": NaN}\n\xff{', '{"a": 1}\n{', '{"a": 1}\n5']
)
def test_a_file_that_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text, "utf-8")
    with pytest.raises(InvalidValueError, match=r"broken\.json"):
        read_runs(path)


def with_metric(name: str, metric: Any) -> dict[str, Any]:
    return AIPERF | {"metrics": AIPERF["metrics"] | {name: metric}}


@pytest.mark.parametrize(
    ("name", "metric", "words"),
    [
        ("time_to_first_token", {"value": [], "unit": "ms"}, "time_to_first_token.value is [].*one number"),
        ("output_sequence_length", {"value": [], "unit": "tokens"}, "output_sequence_length.value is []"),
        ("output_sequence_length", {"value": 1e9, "unit": "tokens"}, "output_sequence_length is.*at most"),
        ("time_to_first_token", {"value": 2, "unit": "minutes"}, "time_to_first_token.unit is 'minutes'"),
        ("inter_chunk_latency", {"value": [1, 1], "unit": "tokens"}, "inter_chunk_latency.unit is 'tokens'"),
        ("time_to_first_token", "x", "time_to_first_token is 'x'"),
        ("time_to_first_token", {"value": "x", "unit": "ms"}, "time_to_first_token.value.0 is 'x'"),
        ("inter_chunk_latency", {"value": [1, -1], "unit": "ms"}, "inter_chunk_latency.value.1 is -1"),
        ("input_sequence_length", {"value": 5}, "input_sequence_length.unit"),
    ],
)
def test_a_wrong_metric_of_aiperf_is_refused_with_its_record(
    tmp_path: Path, name: str, metric: Any, words: str
) -> None:
    pattern = words.replace("[]", r"\[\]")
    with pytest.raises(InvalidValueError, match=rf"result\.json: 1\.metrics\.{pattern}"):
        read_runs(written(tmp_path, AIPERF, with_metric(name, metric)))


@pytest.mark.parametrize("unit", ["tokens", "requests", "ms"])
def test_the_unit_of_a_count_of_aiperf_does_not_matter(tmp_path: Path, unit: str) -> None:
    (run,) = read_runs(written(tmp_path, with_metric("output_sequence_length", {"value": 3, "unit": unit})))
    assert run.requests[0].tokens == 3


def negative(name: str) -> Any:
    if name == "vllm":
        result = json.loads((RESULTS / "vllm-chat.json").read_text("utf-8"))
        return result | {"output_lens": [-1, *result["output_lens"][1:]]}
    if name == "aiperf":
        count = {"value": -3, "unit": "tokens"}
        return AIPERF | {"metrics": AIPERF["metrics"] | {"output_sequence_length": count}}
    return [
        {
            "start_time": 1.0,
            "end_time": 2.0,
            "info": {
                "input_tokens": -5,
                "response_metrics": {"output_tokens": 1, "output_token_times": [2.0]},
            },
            "error": None,
        }
    ]


@pytest.mark.parametrize("name", ["vllm", "aiperf", "inference-perf"])
def test_a_negative_count_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"result\.json.*greater than or equal to 0"):
        read_runs(written(tmp_path, negative(name)))
