"""Results of `vllm bench serve --save-result --save-detailed` (0.32).

Source: vllm/benchmarks/serve.py and vllm/benchmarks/lib/endpoint_request_func.py of that version. A file has
a column per quantity. `start_times` are those of sending; `queue_times`, the wait for a place under
`--max-concurrency` before it, so that their difference is the scheduled time. `output_lens` is 0 for failed
requests; lengths that they asked for are not saved.
"""

from itertools import accumulate
from typing import Annotated, Final

from pydantic import AllowInfNan, BaseModel, ConfigDict, NonNegativeFloat

from qlm.cli.bench.possible import Fields, possible
from qlm.cli.bench.record import Run, Sent, TokenCount, spread
from qlm.domain.errors import InvalidValueError

COLUMNS: Final = ("start_times", "ttfts", "itls", "output_lens", "errors")


class VllmResult(BaseModel):
    """The used part of a result; all columns have shape (requests,)."""

    model_config = ConfigDict(frozen=True)

    duration: Annotated[NonNegativeFloat, AllowInfNan(False)]
    input_lens: list[TokenCount]
    output_lens: list[TokenCount]
    start_times: list[float]
    ttfts: list[NonNegativeFloat]
    itls: list[list[NonNegativeFloat]]
    errors: list[str]
    queue_times: list[NonNegativeFloat] | None = None


def vllm_run(path: str, result: VllmResult) -> Run:
    """Return the run of a result.

    Raises:
        InvalidValueError: It has no request, columns of different lengths, or impossible times.
    """
    count = len(result.start_times)
    for name in ("input_lens", *COLUMNS):
        length = len(getattr(result, name))
        if length != count:
            raise InvalidValueError(f"{path}: {name}", f"{length} values", f"{count}, as start_times has")
    if not count:
        raise InvalidValueError(path, "no request", "at least one")
    queued_s = result.queue_times or [0.0] * count
    if len(queued_s) != count:
        raise InvalidValueError(f"{path}: queue_times", f"{len(queued_s)} values", f"{count} values")
    begin_s = min(at_s - wait_s for at_s, wait_s in zip(result.start_times, queued_s, strict=True))
    sent = [
        possible(_sent(result, row, queued_s[row], begin_s), _fields(f"{path}: ", row))
        for row in range(count)
    ]
    return Run(
        requests=tuple(sorted(sent, key=lambda each: each.scheduled_s)),
        counting="output_lens, spread evenly over the chunks",
        duration_s=result.duration,
    )


def _fields(begin: str, row: int) -> Fields:
    # An answer ends with its last chunk.
    return Fields(f"{begin}start_times.{row}", f"{begin}itls.{row}", f"{begin}itls.{row}")


def _sent(result: VllmResult, row: int, queued_s: float, begin_s: float) -> Sent:
    sent_s = result.start_times[row] - begin_s
    ttft_s = result.ttfts[row]
    times = list(accumulate(result.itls[row], initial=sent_s + ttft_s)) if ttft_s > 0 else []
    error = result.errors[row].strip() or (None if times else "no token")
    return Sent(
        scheduled_s=sent_s - queued_s,
        sent_s=sent_s,
        end_s=times[-1] if times else sent_s,
        # The count of a failed request is not saved: one per chunk.
        chunks=spread(len(times) if error else result.output_lens[row], times),
        error=None if error is None else error.splitlines()[-1],
        prompt_tokens=result.input_lens[row],
    )
