"""`qlm profile --from-log`: a log at one level of load gives a profile that is right at others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from qlm.cli.commands.profile.command import profile_command
from qlm.cli.profiling.request_log import fitted_to, read_request_log
from qlm.rct_estimator.profiles.beyond import beyond_fit
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.file import parse_profile_text
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.profile import Profile, Source, SourceKind
from qlm.simulator.evaluation.fidelity import compare
from qlm.simulator.evaluation.log_fit import fit_log, with_coefficients
from qlm.simulator.evaluation.log_trace import trace
from qlm.simulator.evaluation.replay import replay
from support.request_logs import drawn_log, log_of, served, write_csv

START = find_profile(builtin_profiles(), "llama-3-8b", "A100")
ENGINE = IterationTime(
    host_ms=1.0,
    linear_ms=((1, 14.0), (150, 14.5), (2048, 190.0)),
    kv_ms=1.3e-4,
    kv_mixed_ms=1.6e-4,
    sequence_ms=0.03,
    square_ms=4e-6,
)
REQUEST_MS = 25.0
MEASURED = Path(__file__).parents[3] / "scripts" / "shipped_profiles" / "measured"
MEASURED_LOGS = ("3-2048-128", "6-2048-128", "9-2048-128", "20-256-192")
TRUE_LIMITS = find_profile(builtin_profiles(), "llama-3-8b", "H100")
MADE_UP = Source(SourceKind.DERIVED, "made up")
TRUTH = with_coefficients(START, ENGINE, REQUEST_MS, Source(SourceKind.DERIVED, "made up"))


def e2e_error(profile: Profile, rate_rps: float) -> float:
    log = served(drawn_log(200, rate_rps, seed=5, mean_tokens=250), TRUTH)
    model_s = (replay(log, profile).end_ns - log.arrival_ns) / 1e9
    return float(np.abs(model_s / log.e2e_s - 1).mean())


def test_a_log_at_one_load_gives_a_profile_that_is_right_at_others(tmp_path: Path) -> None:
    file, out = tmp_path / "log.csv", tmp_path / "fitted.yaml"
    write_csv(served(drawn_log(300, 10.0, seed=1, mean_tokens=250), TRUTH), file)
    arguments = ["--from-log", str(file), "--start", "llama-3-8b on 1 x A100", "--out", str(out)]
    done = CliRunner().invoke(profile_command, arguments)
    assert done.exit_code == 0, done.output
    assert "not identified by the log: host_ms" in done.output
    assert "step 1 of at most 9\n" in done.stderr
    fitted = parse_profile_text(out.read_text("utf-8"), str(out))
    assert fitted.request_ms == pytest.approx(REQUEST_MS, abs=4.0)
    for rate_rps in (2.0, 6.0, 14.0):
        assert e2e_error(START, rate_rps) > 0.2
        assert e2e_error(fitted, rate_rps) < 0.03, rate_rps
    assert "linear_ms" in fitted_to(fitted, read_request_log(file))


def test_a_log_of_a_real_engine_gives_a_profile_that_is_right_at_other_loads_and_lengths() -> None:
    logs = {name: read_request_log(MEASURED / f"h100-llama-3-8b-{name}.csv") for name in MEASURED_LOGS}
    for start in ("H100", "A100"):
        fit = fit_log(logs["3-2048-128"], find_profile(builtin_profiles(), "llama-3-8b", start))
        fitted = with_coefficients(TRUE_LIMITS, fit.iteration, fit.request_ms, MADE_UP)
        for name in MEASURED_LOGS[1:]:
            error = compare(name, logs[name], replay(logs[name], fitted)).e2e.each
            assert error is not None
            assert error < 0.04, (start, name)
        assert {"kv_mixed_ms", "sequence_ms"} < set(fit.unidentified), "prompts of one length tell no more"


def test_what_a_log_does_not_tell_follows_the_start() -> None:
    """A noise-free log without large batches says nothing of reading the KV cache."""
    truth = replace(START, iteration=START.iteration.scaled(0.5))
    rows = [(round(n * 2e9), 1000, 60) for n in range(60)]
    fit = fit_log(served(log_of(rows), truth), START)
    assert "kv_ms" in fit.unidentified
    assert fit.iteration.kv_ms == pytest.approx(truth.iteration.kv_ms, rel=0.25)
    for tokens in (1, 512, 1024, 2048):
        mine = fit.iteration.host_ms + fit.iteration.linear(tokens)
        assert mine == pytest.approx(truth.iteration.host_ms + truth.iteration.linear(tokens), rel=0.25)


def with_iteration(profile: Profile, **changed: Any) -> Profile:
    return replace(profile, iteration=replace(profile.iteration, **changed))


@pytest.mark.parametrize(
    ("truth", "start"),
    [
        pytest.param(TRUE_LIMITS, with_iteration(TRUE_LIMITS, linear_ms=((1.0, 7.0),)), id="no slope"),
        pytest.param(TRUE_LIMITS, with_iteration(TRUE_LIMITS, kv_ms=0.0, kv_mixed_ms=None), id="no kv_ms"),
        pytest.param(
            with_iteration(TRUE_LIMITS, linear_ms=((1.0, 5.0), (32.0, 8.0), (8192.0, 180.0))),
            with_iteration(TRUE_LIMITS, linear_ms=((1.0, 5.0), (32.0, 8.0), (8192.0, 180.0))),
            id="a slope that falls",
        ),
    ],
)
def test_a_start_may_lack_what_every_engine_has_or_have_another_shape(truth: Profile, start: Profile) -> None:
    fit = fit_log(served(drawn_log(120, 15.0, seed=1, mean_tokens=400), truth), start)
    fitted = with_coefficients(truth, fit.iteration, fit.request_ms, MADE_UP)
    other = served(drawn_log(120, 5.0, seed=5, mean_tokens=800), truth)
    error = compare("other", other, replay(other, fitted)).e2e.each
    assert error is not None
    assert error < 0.05


@pytest.mark.parametrize(
    ("slower", "output_tokens"),
    [pytest.param(1.0, 1500, id="long answers"), pytest.param(1500.0, 3, id="slow engine")],
)
def test_seconds_without_an_arrival_are_replayed_as_they_were(slower: float, output_tokens: int) -> None:
    truth = replace(START, iteration=START.iteration.scaled(slower))
    log = served(log_of([(round(n * 120e9), 200, output_tokens) for n in range(8)]), truth)
    traced, replayed = trace(log, truth), replay(log, truth)
    assert (traced.durations_ns > 0).all()
    for iteration, ends_ns in ((traced.first, replayed.first_token_ns), (traced.last, replayed.end_ns)):
        assert (traced.ends_ns[iteration] + truth.request_ns).tolist() == ends_ns.tolist()
    fit = fit_log(log, replace(START, iteration=START.iteration.scaled(0.8 * slower)))
    assert fit.e2e_error < 0.01


def test_times_in_whole_seconds_leave_out_what_took_none() -> None:
    exact = served(drawn_log(80, 5.0, seed=1, mean_tokens=250), TRUTH)
    times = ("arrival_ns", "first_token_ns", "end_ns")
    whole = replace(exact, **{name: getattr(exact, name) // 10**9 * 10**9 for name in times})
    assert (whole.end_ns == whole.arrival_ns).any()
    fit = fit_log(whole, START)
    assert fit.e2e_error < 1
    assert fit.ttft_error < 10


def fit_by_command(log: Path, start: str, out: Path) -> tuple[Profile, str]:
    arguments = ["--from-log", str(log), "--start", start, "--out", str(out)]
    done = CliRunner().invoke(profile_command, arguments)
    assert done.exit_code == 0, done.output
    return parse_profile_text(out.read_text("utf-8"), out.name), done.output


def test_a_profile_names_every_log_that_it_came_from_and_how_far_the_last_one_went(tmp_path: Path) -> None:
    start, logs = (
        "llama-3-8b on 1 x A100",
        [tmp_path / name for name in ("a.csv", "b (1).csv", "the log.csv")],
    )
    for number, log in enumerate(logs):
        write_csv(served(drawn_log(60, 4.0, seed=number, mean_tokens=250), TRUTH), log)
        fitted, output = fit_by_command(log, start, tmp_path / f"{number}.yaml")
        start = str(tmp_path / f"{number}.yaml")
    text = fitted.sources["linear_ms"].text
    assert text.count("SHA-256") == len(logs)
    assert text.count("does not identify") == 1, "what a former log did not identify is not repeated"
    for log in logs:
        assert "linear_ms" in fitted_to(fitted, read_request_log(log))
    assert fitted.covered is not None
    assert fitted.covered.sequences_max < fitted.seqs_max
    (line,) = beyond_fit(fitted)
    assert f"{fitted.seqs_max} requests in a batch (logged to" in line
    assert line in output


def test_what_one_request_leaves_open_is_as_uncertain_as_it_was(tmp_path: Path) -> None:
    log = tmp_path / "one.csv"
    write_csv(served(log_of([(0, 500, 20)]), TRUTH), log)
    fitted, output = fit_by_command(log, "llama-3-8b on 1 x A100", tmp_path / "one.yaml")
    for name in ("linear_ms", "kv_ms", "request_ms"):
        assert f"not identified by the log: {name}\n" in output
        assert fitted.sources[name].uncertainty == START.sources[name].uncertainty
    assert fitted.sources["kv_mixed_ms"].uncertainty == START.sources["kv_ms"].uncertainty


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "x.yaml"], "qlm: --start is None; expected a value, as --from-log needs it"),
        (["--start", "m on 1 x A"], "qlm: --out is None; expected a value, as --from-log needs it"),
        (["http://e", "--start", "m on 1 x A", "--out", "x.yaml"], "qlm: URL is 'http://e'; expected none"),
    ],
)
def test_what_a_log_needs_beside_it_is_said(tmp_path: Path, arguments: list[str], said: str) -> None:
    file = tmp_path / "log.csv"
    file.write_text("")
    done = CliRunner().invoke(profile_command, ["--from-log", str(file), *arguments])
    assert done.exit_code == 2
    assert said in done.output


def test_without_a_log_an_engine_and_its_accelerator_are_needed() -> None:
    done = CliRunner().invoke(profile_command, ["--accelerator", "A100"])
    assert (done.exit_code, done.output) == (
        2,
        "qlm: URL is None; expected a value, or --from-log with a log\n",
    )


def test_a_log_in_which_nothing_took_time_is_refused(tmp_path: Path) -> None:
    file, out = tmp_path / "log.csv", tmp_path / "fitted.yaml"
    file.write_text("arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s\n0,10,1,0,0\n1,10,1,0,0\n")
    arguments = ["--from-log", str(file), "--start", "llama-3-8b on 1 x A100", "--out", str(out)]
    done = CliRunner().invoke(profile_command, arguments)
    assert (done.exit_code, done.output) == (
        2,
        "qlm: log.csv is 'only latencies of zero'; expected a request that took time\n",
    )
    assert not out.exists()


def test_levels_that_share_a_clock_are_fitted_one_after_the_other(tmp_path: Path) -> None:
    parts = [served(drawn_log(150, 10.0, seed=seed, mean_tokens=250), TRUTH) for seed in (1, 2)]
    for number, part in enumerate(parts):
        write_csv(part, tmp_path / f"{number}.csv")
    header, *_ = (tmp_path / "0.csv").read_text().splitlines()
    rows = [
        f"{row},{number}"
        for number in range(2)
        for row in (tmp_path / f"{number}.csv").read_text().splitlines()[1:]
    ]
    both = tmp_path / "both.csv"
    both.write_text("\n".join([f"{header},load", *rows]))
    fit = fit_log(read_request_log(both), START)
    assert fit.e2e_error < 0.03


def test_a_log_at_half_of_capacity_gives_the_capacity_of_an_engine_four_times_as_fast() -> None:
    truth = find_profile(builtin_profiles(), "llama-3-8b", "H100")
    start = replace(truth, iteration=truth.iteration.scaled(4.0))
    fit = fit_log(served(drawn_log(500, 30.0, seed=2, mean_tokens=250), truth), start)
    fitted = with_coefficients(start, fit.iteration, fit.request_ms, Source(SourceKind.DERIVED, "fitted"))
    full = served(drawn_log(800, 1000.0, seed=9, mean_tokens=250), truth)
    error = compare("full", full, replay(full, fitted)).rate_error
    assert error is not None
    assert abs(error) < 0.05


def test_a_log_tells_what_an_engine_takes_per_request() -> None:
    source = Source(SourceKind.DERIVED, "made up")
    truth = with_coefficients(START, replace(ENGINE, admission_ms=12.0), REQUEST_MS, source)
    fit = fit_log(served(drawn_log(300, 10.0, seed=1, mean_tokens=250), truth), START)
    assert fit.e2e_error < 0.02
    fitted = with_coefficients(START, fit.iteration, fit.request_ms, source)
    log = served(drawn_log(200, 16.0, seed=5, mean_tokens=250), truth)
    assert np.abs((replay(log, fitted).end_ns - log.arrival_ns) / 1e9 / log.e2e_s - 1).mean() < 0.04
