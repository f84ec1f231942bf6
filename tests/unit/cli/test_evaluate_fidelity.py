"""`qlm evaluate fidelity`, from the command line to what it prints and writes."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from qlm.cli.main import main
from qlm.cli.profiling.named import named_profile
from qlm.cli.profiling.request_log import log_source_text, read_request_log
from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.file import profile_text
from qlm.rct_estimator.profiles.profile import Source, SourceKind
from support.request_logs import drawn_log, served, write_csv

SHIPPED = "llama-3-8b on 1 x A100"
LLAMA = find_profile(builtin_profiles(), "llama-3-8b", "A100")
SYNCHRONOUS = "--no-async-scheduling"


@pytest.fixture(scope="module")
def log_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "served.csv"
    write_csv(served(drawn_log(100, 2.0), replace(LLAMA, async_scheduling=False)), path)
    return path


def fidelity(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["evaluate", "fidelity", *map(str, arguments)])


def test_the_log_of_the_profile_itself_has_no_errors(log_file: Path, tmp_path: Path) -> None:
    done = fidelity("--log", log_file, "--profile", SHIPPED, SYNCHRONOUS, "--json", tmp_path / "out.json")
    assert done.exit_code == 0, done.output
    assert "no source of the profile names this log" in done.output
    assert "no request shares a prefix" in done.output
    assert "linear_ms" in done.output and "derived" in done.output
    assert "  request_ms derived: Clients of vLLM 0.21 on an H100" in done.output
    (row,) = re.findall(r"E2E.*", done.output)
    assert re.findall(r"[-+]?\d+\.\d%", row) == ["+0.0%"] * 4 + ["0.0%"]
    plain = json.loads((tmp_path / "out.json").read_text("utf-8"))
    (level,) = plain["levels"]
    assert level["requests"] == plain["log"]["requests"] == 100
    assert abs(level["e2e"]["error"]["p99"]) < 1e-6
    assert plain["fitted_to_this_log"] == []


def test_overrides_change_what_the_engine_may_do(log_file: Path, tmp_path: Path) -> None:
    means = []
    for more in ([], ["--seqs-max", "2"], ["--batched-tokens-max", "16", "--seqs-max", "16"]):
        done = fidelity("--log", log_file, "--profile", SHIPPED, "--json", tmp_path / "out.json", *more)
        assert done.exit_code == 0, done.output
        plain = json.loads((tmp_path / "out.json").read_text("utf-8"))
        means.append(plain["levels"][0]["ttft"]["error"]["mean"])
    assert means[1] > means[0] + 0.5
    assert means[2] > means[0] + 0.5
    assert "asynchronous scheduling" in fidelity(
        "--log", log_file, "--profile", SHIPPED, "--async-scheduling"
    ).output  # fmt: skip
    assert " synchronous scheduling" in fidelity(
        "--log", log_file, "--profile", SHIPPED, "--no-async-scheduling"
    ).output  # fmt: skip


def test_a_profile_fitted_to_the_log_is_not_judged_with_it(log_file: Path, tmp_path: Path) -> None:
    source = Source(SourceKind.DERIVED, f"Fitted to {log_source_text(read_request_log(log_file))}.")
    profile = replace(LLAMA, sources={**LLAMA.sources, "linear_ms": source, "kv_ms": source})
    path = tmp_path / "fitted.yaml"
    path.write_text(profile_text(profile), "utf-8")
    done = fidelity("--log", log_file, "--profile", path)
    assert done.exit_code == 0, done.output
    expected = next(line for line in done.output.splitlines() if line.startswith("NO JUDGEMENT"))
    assert "served.csv" in expected and "linear_ms, kv_ms" in expected
    assert "no source of the profile" not in done.output


def test_levels_and_the_saturated_rate_are_printed(tmp_path: Path) -> None:
    path = tmp_path / "levels.csv"
    small = replace(LLAMA, seqs_max=64, batched_tokens_max=2048, async_scheduling=False)
    lines = ["load,arrival_s,prompt_tokens,output_tokens,first_token_s,end_s"]
    for load, rate in (("light", 0.5), ("overload", 300.0)):
        write_csv(served(drawn_log(400, rate), small), path)
        lines += [f"{load},{line}" for line in path.read_text("utf-8").splitlines()[1:]]
    path.write_text("\n".join(lines), "utf-8")
    limits = "--seqs-max", "64", "--batched-tokens-max", "2048"
    done = fidelity("--log", path, "--profile", SHIPPED, SYNCHRONOUS, *limits)
    assert done.exit_code == 0, done.output
    assert done.output.index("light: 400 requests") < done.output.index("overload: 400 requests")
    (expected,) = re.findall(r"saturated: log (\S+)/s, model (\S+)/s \((\S+)%\)", done.output)
    assert float(expected[0]) == pytest.approx(float(expected[1]), rel=1e-3)
    assert abs(float(expected[2])) < 0.1


def test_shared_prefixes_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "shared.jsonl"
    row = {"arrival": 0, "prompt_tokens": 320, "output_tokens": 2, "ttft": 1, "e2e": 2, "prefix_tokens": 160}
    rows = [row | {"arrival": 9 * number, "prefix_id": "system"} for number in range(3)]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    done = fidelity("--log", path, "--profile", SHIPPED)
    assert "shared prefixes: 320 prompt tokens, 320 of them found" in done.output, done.output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--log", "{missing}", "--profile", SHIPPED], "a file that can be read"),
        (["--log", "{log}", "--profile", "{missing}"], "or MODEL on GPUS x ACCELERATOR"),
        (["--log", "{log}", "--profile", "llama-3-8b on 9 x A100"], "one of:"),
        (["--log", "{log}", "--profile", "{log}"], "served.csv"),
        (["--log", "{log}", "--profile", SHIPPED, "--batched-tokens-max", "1"], "batched_tokens_max"),
        (["--log", "{log}", "--profile", SHIPPED, "--json", "{missing}/out.json"], "missing/out.json"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], expected: str, log_file: Path, tmp_path: Path) -> None:
    done = fidelity(*(each.format(log=log_file, missing=tmp_path / "missing") for each in arguments))
    assert done.exit_code in (1, 2)
    assert expected in done.output
    assert len(done.output.splitlines()) == 1


def test_profiles_are_named_with_or_without_the_number_of_gpus() -> None:
    assert named_profile("llama-3-8b on A100") == named_profile(SHIPPED) == LLAMA
    with pytest.raises(InvalidValueError, match="one of:"):
        named_profile("llama-3-8b on 1xA1")
