"""The commands that simulate, from the command line to the files they write."""

import json
import re
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from qlm.cli.commands.evaluate.forecasting import PICTURES
from qlm.cli.commands.options import errors_in_one_line
from qlm.cli.main import main
from qlm.cli.scenario.output import write_files
from qlm.domain.errors import QlmError
from qlm.simulator.gpu_report import IDLE_COLUMNS
from qlm.simulator.report import COLUMNS

SCENARIO = """
name: small
models:
  - {id: mistral-7b, context_tokens: 8192}
instances:
  - {id: gpu, count: 2, accelerator: A100, models: [mistral-7b]}
slo_classes:
  chat: {ttft_ms: 2000}
  batch: {}
workload:
  - name: chat
    arrivals: {poisson: {rate_rps: 10, requests: 60}}
    lengths:
      prompt_tokens: {lognormal: {median: 300, sigma: 0.8, max: 2000}}
      output_tokens: {lognormal: {median: 40, sigma: 0.6, max: 300}}
    model: mistral-7b
    slo: {shares: {chat: 0.7, batch: 0.3}}
    max_tokens: {fixed: 300}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO, "utf-8")
    return path


def with_arrivals(folder: Path, arrivals: str, more: str = "") -> Path:
    path = folder / "other.yaml"
    text = SCENARIO.replace("{poisson: {rate_rps: 10, requests: 60}}", arrivals)
    path.write_text(text + more, "utf-8")
    return path


def qlm(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def test_requests_due_after_the_horizon_are_counted_apart(tmp_path: Path) -> None:
    arrivals = "{bursts: {count: 30, start_s: 1000}}"
    done = qlm("simulate", with_arrivals(tmp_path, arrivals, "limits: {horizon_s: 5}\n"))
    assert "0 requests, - met in all; 0 refused, 0 unfinished; 30 not arrived" in done.output, done.output


def test_one_request_is_counted_in_the_singular(tmp_path: Path) -> None:
    done = qlm("simulate", with_arrivals(tmp_path, "{bursts: {count: 1, start_s: 0}}"))
    assert re.search(r"^1 request, .* met in all; .* 0 evictions$", done.output, re.M), done.output


def test_simulate_writes_the_files_of_the_design(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = qlm("simulate", scenario, "--policy", "fcfs", "--seed", "7", "--out", out)
    assert done.exit_code == 0, done.output
    assert "60 requests" in done.output and "chat" in done.output
    head, *rows = (out / "requests.csv").read_text("utf-8").splitlines()
    assert head.split(",") == list(COLUMNS) and len(rows) == 60
    summed = json.loads((out / "summary.json").read_text("utf-8"))
    assert (summed["policy"], summed["seed"], summed["submitted"]) == ("fcfs", 7, 60)
    wanted = {"attainment", "attainment_by_class", "throughput_rps", "output_tokens_per_s", "swaps"}
    wanted |= {"swap_seconds", "evictions", "plan_p50_ms", "plan_p99_ms", "wall_s"}
    assert wanted <= summed.keys()
    for seconds in summed["gpu_time_by_instance"].values():
        assert sum(seconds.values()) == pytest.approx(summed["simulated_s"], abs=1e-5)
    assert f"{100 * summed['gpu_time']['useful']:.1f} % useful" in done.output
    assert (out / "idle.csv").read_text("utf-8").startswith(",".join(IDLE_COLUMNS))


def test_equal_seeds_write_equal_files(scenario: Path, tmp_path: Path) -> None:
    written = []
    for number, seed in enumerate(["1", "1", "2"]):
        out = tmp_path / str(number)
        assert qlm("simulate", scenario, "--seed", seed, "--out", out).exit_code == 0
        written.append((out / "requests.csv").read_bytes())
    assert written[0] == written[1] != written[2]


@pytest.mark.parametrize("command", [["simulate"], ["evaluate", "rct"]])
def test_nothing_is_written_to_a_standard_error_that_is_no_terminal(
    command: list[str], scenario: Path
) -> None:
    assert qlm(*command, scenario).stderr == ""


def test_load_makes_requests_come_faster(scenario: Path) -> None:
    plain, doubled = (
        json.loads(qlm("simulate", scenario, "--load", load, "--json").stdout) for load in ("1", "4")
    )
    assert doubled["simulated_s"] < plain["simulated_s"]


def test_plots_are_pictures(scenario: Path, tmp_path: Path) -> None:
    done = qlm("simulate", scenario, "--out", tmp_path, "--plots")
    assert done.exit_code == 0, done.output
    for name in ("attainment", "queues", "gantt", "use"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_no_class_has_no_legend(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.cli.plots.simulation.by_class", lambda result: ())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        done = qlm("simulate", scenario, "--out", tmp_path, "--plots")
    assert done.exit_code == 0, done.output


def test_evaluate_compares_forecasts_with_what_happened(scenario: Path, tmp_path: Path) -> None:
    done = qlm("evaluate", "rct", scenario, "--out", tmp_path, "--plots", "--json")
    assert done.exit_code == 0, done.output
    rows = {(row["slo_class"], row["time"]): row for row in json.loads(done.output)["accuracy"]}
    assert sum(json.loads(done.output)["gpu_time"].values()) == pytest.approx(1.0)
    assert {"wait", "first_token", "completion", "group"} == {time for _, time in rows}
    assert sum(row["count"] for (_, time), row in rows.items() if time == "completion") == 60
    assert json.loads((tmp_path / "accuracy.json").read_text("utf-8")) == json.loads(done.output)
    pictures = {each.name for each in tmp_path.glob("*.png")}
    assert "completion-predicted.png" in pictures and pictures <= set(PICTURES)
    assert (tmp_path / "completion-predicted.png").read_bytes().startswith(b"\x89PNG")
    printed = qlm("evaluate", "rct", scenario).output
    assert "R²" in printed and "GPU time: " in printed


@pytest.mark.parametrize("command", [["simulate"], ["evaluate", "rct"]])
@pytest.mark.parametrize(
    ("arrivals", "more", "message"),
    [
        ("{ramp: {from_rps: 0, to_rps: 0, duration_s: 9}}", "", "workload draws no request with seed 1"),
        (
            "{bursts: {count: 3}}",
            "    over_context: drop\n    prompt_tokens_max: 300\n",
            r"draws no request .*\(stream chat: 3 requests over the context dropped\); expected at least one",
        ),
        (
            "{poisson: {rate_rps: 1e-300, requests: 2}}",
            "",
            r"workload\.chat\.arrivals is 'a request at .*'; expected none after 315360000 s",
        ),
        (
            "{poisson: {rate_rps: 1e6, duration_s: 31536000}}",
            "",
            r"workload\.chat\.arrivals is '31536000000000 requests'; expected at most 9999999 in all",
        ),
    ],
)
def test_a_workload_that_cannot_be_drawn_is_named_and_nothing_written(
    command: list[str], arrivals: str, more: str, message: str, tmp_path: Path
) -> None:
    path = with_arrivals(tmp_path, arrivals, more)
    if "over_context" in more:
        tight = path.read_text("utf-8").replace("context_tokens: 8192", "context_tokens: 2")
        path.write_text(tight, "utf-8")
    done = qlm(*command, path, "--out", tmp_path / "out", "--plots")
    assert (done.exit_code, len(done.output.splitlines())) == (2, 1)
    assert re.search(rf"^qlm: {re.escape(str(path))}: .*{message}", done.output), done.output
    assert not (tmp_path / "out").exists()


def test_what_streams_lost_is_shown(tmp_path: Path) -> None:
    path = with_arrivals(tmp_path, "{bursts: {count: 40}}", "    prompt_tokens_max: 300\n")
    done = qlm("simulate", path, "--out", tmp_path / "out")
    (stream,) = json.loads((tmp_path / "out/summary.json").read_text("utf-8"))["streams"]
    assert (stream["name"], stream["requests"], stream["left_out"]) == ("chat", 40, 0)
    assert 0 < stream["prompts_cut"] < 40
    assert f"stream chat: {stream['prompts_cut']} prompts cut\n" in done.output
    assert "stream chat" in qlm("evaluate", "rct", path).output
    untouched = qlm("simulate", with_arrivals(tmp_path, "{bursts: {count: 40}}"))
    assert "stream chat" not in untouched.output


def test_the_largest_seed_is_written_and_larger_ones_are_refused(scenario: Path, tmp_path: Path) -> None:
    for command in (["simulate"], ["evaluate", "rct"]):
        assert qlm(*command, scenario, "--seed", str(2**63 - 1), "--out", tmp_path / "out").exit_code == 0
        done = qlm(*command, scenario, "--seed", str(2**63), "--out", tmp_path / "none")
        assert (done.exit_code, str(2**63) in done.output) == (2, True)
    assert json.loads((tmp_path / "out/summary.json").read_text("utf-8"))["seed"] == 2**63 - 1
    assert not (tmp_path / "none").exists()


def test_the_table_of_an_evaluation_fits_80_columns(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = qlm("evaluate", "rct", scenario).output.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("no room" in line for line in lines)
    heads = [line.split() for line in lines if "mean" in line]
    assert (
        heads
        == [["class", "n", "mean", "error", "%", "bias", "R²", "in", "90", "%", "width", "oracle's"]] * 4
    )


@pytest.mark.parametrize("command", [["simulate"], ["evaluate", "rct"]])
@pytest.mark.parametrize("below", ["", "inner"])
def test_a_file_is_no_folder_to_write_to(command: list[str], below: str, scenario: Path) -> None:
    done = qlm(*command, scenario, "--out", scenario / below)
    assert (done.exit_code, len(done.output.splitlines())) == (2, 1)
    assert "expected a folder" in done.output and str(scenario) in done.output


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["simulate"], "summary.json"),
        (["simulate", "--plots"], "use.png"),
        (["compare"], "compare.csv"),
        (["evaluate", "rct"], "accuracy.json"),
        (["evaluate", "rct", "--plots"], "group-coverage.png"),
    ],
)
def test_a_folder_of_the_name_of_a_file_is_named_before_the_simulation(
    command: list[str], name: str, scenario: Path, tmp_path: Path
) -> None:
    (tmp_path / "out" / name).mkdir(parents=True)
    done = qlm(*command, scenario, "--out", tmp_path / "out")
    assert (done.exit_code, len(done.output.splitlines())) == (2, 1)
    assert f"{tmp_path / 'out' / name} cannot be written" in done.output
    assert [each.name for each in (tmp_path / "out").iterdir()] == [name]


@pytest.mark.parametrize(
    ("command", "module"),
    [
        (["simulate"], "scenario.simulating"),
        (["compare"], "comparison.runs"),
        (["evaluate", "rct"], "commands.evaluate.forecasting"),
    ],
)
def test_a_folder_that_takes_no_file_is_named_before_the_simulation(
    command: list[str], module: str, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(f"qlm.cli.{module}.simulate")
    done = qlm(*command, scenario, "--out", "/proc")
    assert (done.exit_code, len(done.output.splitlines())) == (1, 1)
    assert done.output.startswith("qlm: /proc/.")


def test_no_file_is_replaced_if_one_cannot_be(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": b"old"})
    (tmp_path / "b").mkdir()
    with pytest.raises(QlmError, match="/b cannot be written"):
        write_files(tmp_path, {"a": b"new", "b": b"new"})
    assert (tmp_path / "a").read_bytes() == b"old"


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": b"old", "b": b"old"})
    (tmp_path / ".b.part").mkdir()
    with pytest.raises(OSError, match="part"):
        write_files(tmp_path, {"a": b"new", "b": b"new"})
    assert [(tmp_path / name).read_bytes() for name in ("a", "b")] == [b"old", b"old"]
    assert not (tmp_path / ".a.part").exists()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError("the disk is on fire"), "qlm: the disk is on fire"),
        (OSError(28, "No space left on device"), "qlm: No space left on device"),
        (OSError(28, "No space left on device", "f"), "qlm: f: No space left on device"),
        (OSError(), "qlm: OSError"),
    ],
)
def test_an_error_of_the_file_system_says_what_is_known(
    error: OSError, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, errors_in_one_line():
        raise error
    assert (ended.value.code, capsys.readouterr().err) == (1, f"{line}\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["simulate", "{scenario}", "--plots"], "--out"),
        (["evaluate", "rct", "{scenario}", "--plots"], "--out"),
        (["simulate", "{missing}"], "missing.yaml"),
        (["evaluate", "rct", "{missing}"], "missing.yaml"),
        (["simulate", "{scenario}", "--policy", "magic"], "expected one of edf, qlm, "),
        (["evaluate", "rct", "{scenario}", "--policy", "edf+magic"], "then any of +evict, +demote, "),
        (["simulate", "{scenario}", "--seed", "-1"], "-1"),
        (["simulate", "{scenario}", "--load", "0"], "0"),
        (["simulate", "{scenario}", "--load", "nan"], "nan"),
        (["simulate", "{scenario}", "--out", "{scenario}"], "small.yaml"),
        (["evaluate", "rct", "{scenario}", "--every", "0"], "0"),
    ],
)
def test_bad_use_gets_one_clear_line(
    arguments: list[str], complaint: str, scenario: Path, tmp_path: Path
) -> None:
    filled = [each.format(scenario=scenario, missing=tmp_path / "missing.yaml") for each in arguments]
    done = qlm(*filled)
    assert done.exit_code in (1, 2)
    assert "Traceback" not in done.output and isinstance(done.exception, SystemExit)
    assert complaint in done.output.splitlines()[-1]


def test_shared_prefixes_of_a_trace_are_found_and_counted(tmp_path: Path) -> None:
    rows = [f"{number},1000,5,{'abc'[number % 3]},640" for number in range(30)]
    head = "arrival_s,input_tokens,output_tokens"
    (tmp_path / "log.csv").write_text("\n".join([f"{head},prefix_id,prefix_tokens", *rows]), "utf-8")
    shared = _traced(tmp_path)
    summed = json.loads(shared.output)
    assert summed["prefix_tokens_shared"] == summed["prefix_tokens_hit"] == 27 * 640
    plain = [row.rsplit(",", 2)[0] for row in rows]
    (tmp_path / "log.csv").write_text("\n".join([head, *plain]), "utf-8")
    unshared = json.loads(_traced(tmp_path).output)
    assert unshared["prefix_tokens_shared"] == unshared["prefix_tokens_hit"] == 0
    latency = [each["latency_by_class"]["chat"]["first_token_p50_s"] for each in (summed, unshared)]
    assert latency[0] < 0.7 * latency[1]
    assert "no request shares a prefix" in qlm("simulate", tmp_path / "other.yaml").output


def _traced(folder: Path) -> Result:
    path = with_arrivals(folder, "{trace: log}", "traces:\n  log: {path: log.csv, format: csv}\n")
    text = re.sub(r"    lengths:\n(      .*\n)+", "    lengths: {trace: log}\n", path.read_text("utf-8"))
    path.write_text(
        text.replace("count: 2", "count: 1").replace("{chat: 0.7, batch: 0.3}", "{chat: 1}"), "utf-8"
    )
    return qlm("simulate", path, "--json")
