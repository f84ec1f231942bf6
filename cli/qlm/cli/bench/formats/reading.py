"""Detection of the format of a result file, by its keys."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import TypeAdapter, ValidationError

from qlm.cli.bench.formats.aiperf import AiperfRecord, aiperf_run
from qlm.cli.bench.formats.inference_perf import PerfRequest, inference_perf_run
from qlm.cli.bench.formats.vllm import COLUMNS, VllmResult, vllm_run
from qlm.cli.bench.record import Run
from qlm.cli.bench.saved import FORMAT, VERSION, SavedFile, runs_of
from qlm.domain.errors import InvalidValueError

READABLE: Final = (
    "a file of qlm bench --save, of vllm bench serve --save-result --save-detailed, profile_export.jsonl of "
    "aiperf, or per_request_lifecycle_metrics.json of inference-perf"
)

_WITHOUT_TIMES: Final[tuple[tuple[frozenset[str], str, str], ...]] = (
    (
        frozenset({"successes", "load_summary"}),
        "a summary of inference-perf, without times of tokens",
        "per_request_lifecycle_metrics.json, which report.request_lifecycle.per_request: true writes",
    ),
    (
        frozenset({"request_latency", "request_throughput"}),
        "a summary of aiperf, without times of tokens",
        "profile_export.jsonl, which aiperf profile --streaming writes beside it",
    ),
    (
        frozenset({"benchmarks"}),
        "a report of guidellm, which keeps only the first and the last token time of a request",
        READABLE,
    ),
)
"""Keys of files that cannot be rated, what they are, and which file can."""

Data = Mapping[str, Any]


def read_runs(path: Path) -> list[Run]:
    """Read the runs of a result file.

    Raises:
        InvalidValueError: It cannot be read, has no known format, is damaged, has no times of tokens, or
            impossible ones.
    """
    documents = _documents(path)
    first = documents[0]
    if isinstance(first, list):
        requests = _valid(path, TypeAdapter(list[PerfRequest]).validate_python, first)
        return [inference_perf_run(str(path), requests)]
    for each in documents:
        if not isinstance(each, dict):
            raise InvalidValueError(str(path), f"JSON of type {type(each).__name__}", READABLE)
    if "metadata" in first and "metrics" in first:
        records = _valid(path, TypeAdapter(list[AiperfRecord]).validate_python, documents)
        return [aiperf_run(str(path), records)]
    return [run for each in documents for run in _runs(path, each)]


def _runs(path: Path, data: Data) -> list[Run]:
    if data.get("format") == FORMAT:
        if data.get("version") != VERSION:
            raise InvalidValueError(f"{path}: version", data.get("version"), str(VERSION))
        runs = runs_of(str(path), _valid(path, SavedFile.model_validate, data))
        if not all(run.requests for run in runs) or not runs:
            raise InvalidValueError(str(path), "a run without a request", "at least one in each")
        return runs
    if "request_throughput" in data and "duration" in data:
        missing = [name for name in COLUMNS if name not in data]
        if missing:
            raise InvalidValueError(
                str(path),
                f"a result of vllm bench serve without {', '.join(missing)}",
                "one of vllm bench serve --save-result --save-detailed",
            )
        return [vllm_run(str(path), _valid(path, VllmResult.model_validate, data))]
    for keys, found, expected in _WITHOUT_TIMES:
        if keys <= data.keys():
            raise InvalidValueError(str(path), found, expected)
    raise InvalidValueError(str(path), f"JSON with the keys {', '.join(list(data)[:8])}", READABLE)


def _documents(path: Path) -> list[Any]:
    """Return the JSON documents of a file: one, or one per line."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidValueError(str(path), error.strerror, "a file that can be read") from error
    try:
        return [_loads(text)]
    except (ValueError, RecursionError):
        pass
    try:
        documents = [_loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(str(path), f"not JSON ({error})", READABLE) from None
    if not documents:
        raise InvalidValueError(str(path), "empty", READABLE)
    return documents


def _loads(text: bytes) -> Any:
    """Return a JSON document, in which there may be Infinity and NaN, as clients in Python write them.

    Raises:
        ValueError: It is none.
        RecursionError: It is nested too deep.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        if b"Infinity" not in text and b"NaN" not in text:
            raise
        return json.loads(text)


def _valid(path: Path, validate: Callable[[Any], Any], data: Any) -> Any:
    try:
        return validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidValueError(f"{path}: {where}", first["input"], first["msg"]) from None
