"""Per-request reports of inference-perf: `per_request_lifecycle_metrics.json`, a list of requests.

Source: inference_perf/reportgen/base.py and apis/base.py (0.7). `output_token_times` are of the same clock
as `start_time`, the time of sending; the scheduled time is not in the file. Older versions have the times
directly in `info`, newer ones in `info.response_metrics`.
"""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from qlm.cli.bench.possible import Fields, possible
from qlm.cli.bench.record import Run, Sent, TokenCount, spread
from qlm.domain.errors import InvalidValueError


class Response(BaseModel):
    """What an answer brought."""

    model_config = ConfigDict(frozen=True)

    output_tokens: TokenCount | None = None
    output_token_times: list[float] | None = None


class Info(Response):
    """Counts and times of a request, in the place of older versions and in that of newer ones."""

    input_tokens: TokenCount = 0
    response_metrics: Response | None = None


class Failure(BaseModel):
    """Cause of a failure."""

    model_config = ConfigDict(frozen=True)

    error_type: str
    error_msg: str = ""


class PerfRequest(BaseModel):
    """A request."""

    model_config = ConfigDict(frozen=True)

    start_time: float
    end_time: float
    info: Info | None = None
    error: Failure | None = None


def inference_perf_run(path: str, requests: Sequence[PerfRequest]) -> Run:
    """Return the run of a report.

    Raises:
        InvalidValueError: It has no request, a complete answer without times of its tokens, or impossible
            times.
    """
    if not requests:
        raise InvalidValueError(path, "no request", "at least one")
    begin_s = min(each.start_time for each in requests)
    sent = [
        possible(_sent(path, each, begin_s), _fields(f"{path}: {row}.", each))
        for row, each in enumerate(requests)
    ]
    return Run(
        requests=tuple(sorted(sent, key=lambda each: each.scheduled_s)),
        counting="output_tokens, spread evenly over output_token_times",
    )


def _fields(begin: str, request: PerfRequest) -> Fields:
    newer = request.info is not None and request.info.response_metrics is not None
    times = f"info.{'response_metrics.' if newer else ''}output_token_times"
    return Fields(f"{begin}start_time", f"{begin}{times}", f"{begin}end_time")


def _sent(path: str, request: PerfRequest, begin_s: float) -> Sent:
    at_s = request.start_time - begin_s
    info = request.info or Info()
    response = info.response_metrics or info
    times = [each - begin_s for each in response.output_token_times or ()]
    if request.error is None and not times and (response.output_tokens is None or response.output_tokens > 0):
        expected = (
            "times in each answer: run with api.streaming: true and report.request_lifecycle.per_request"
        )
        raise InvalidValueError(f"{path}: output_token_times", "empty", expected)
    tokens = len(times) if response.output_tokens is None else response.output_tokens
    return Sent(
        scheduled_s=at_s,
        sent_s=at_s,
        end_s=request.end_time - begin_s,
        chunks=spread(tokens, times),
        error=None if request.error is None else f"{request.error.error_type}: {request.error.error_msg}",
        prompt_tokens=info.input_tokens,
    )
