"""`qlm plan` from the command line: what it prints, writes and refuses."""

import json
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import click
import pytest

from qlm.cli.main import main
from qlm.cli.plans.files import read_plan, read_problem
from qlm.cli.plans.gantt import ROWS_MAX
from qlm.cli.plans.missed import WHY
from qlm.cli.plans.tables import summary
from qlm.domain.ids import ModelId
from qlm.planner import limits
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.limits import FILE_BYTES_MAX
from qlm.planner.methods import METHODS
from qlm.planner.plan_json import plan_to_plain
from qlm.planner.policy.misses import Reason, find_misses
from qlm.planner.problem_json import problem_to_plain
from qlm.planner.verify.referee import judged, keeps_promise, verify
from support.plan_command import PROBLEM, qlm, stored
from support.plans import random_problem


@pytest.mark.parametrize("name", ["fast", "exact", "edf", "sjf", "random"])
def test_json_is_the_plan_and_nothing_else(name: str, problem: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = qlm("plan", "--problem", problem, "--method", name, "--json", "--out", out)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    assert json.loads(done.stdout) == json.loads(out.read_text("utf-8"))
    read = read_plan(out, PROBLEM)
    assert read == replace(judged(PROBLEM, read), solve_s=read.solve_s)
    assert read.method.startswith(name)
    assert read.solve_s is not None and read.solve_s > 0
    assert read.lower_bound_s is not None and read.penalty_s is not None
    assert read.lower_bound_s <= read.penalty_s
    assert list(tmp_path.glob(".*")) == []


def test_a_plan_is_printed_by_instance_with_what_it_costs(problem: Path) -> None:
    done = qlm("plan", "--problem", problem, "--method", "edf")
    assert (done.exit_code, done.stderr) == (0, "")
    report = verify(PROBLEM, plan_edf(PROBLEM))
    for row in report.rows:
        line = next(each for each in done.output.splitlines() if re.search(rf"\b{row.group}\b", each))
        assert (row.group + " (moved)" in line) == row.moved
        assert (row.swap or "-") in line
    for instance in PROBLEM.instances:
        assert f"{instance.id} ({instance.kind}): " in done.output
    assert f"penalty {report.penalty_s:.6g} s (no plan is below " in done.output
    assert f"{100 * report.expected_attainment:.1f} % of 143 requests with a deadline in time" in done.output
    assert f"{report.swaps_warm} warm, {report.swaps_cold} cold" in done.output
    assert f"groups moved: {len(report.moved)}, for {report.move_s:.6g} s" in done.output
    assert re.search(r"made by edf in \d+\.\d{3} s", done.output)
    assert "violated" not in done.output


def test_rows_and_instances_can_be_chosen(problem: Path) -> None:
    done = qlm("plan", "--problem", problem, "--method", "edf", "--instance", "i2", "--rows", "1")
    assert done.exit_code == 0
    assert "i2 (fast)" in done.output and "i1 (slow)" not in done.output
    assert "… 3 more groups" in done.output


def test_a_large_fleet_is_shown_in_part(tmp_path: Path) -> None:
    many = random_problem(1, groups=5, instances=70)
    path = stored(tmp_path / "many.json", many)
    plan = tmp_path / "plan.json"
    done = qlm("plan", "--problem", path, "--method", "edf", "--out", plan)
    assert "… 50 more instances: --instance NAME shows one, --json all" in done.output
    shown = qlm("plan", "show", "--problem", path, "--plan", plan)
    assert f"… {70 - ROWS_MAX} more instances" in shown.output


def test_what_cannot_be_placed_is_shown_with_the_reason(tmp_path: Path) -> None:
    lost = replace(PROBLEM.groups[0], model=ModelId("giant"))
    path = stored(tmp_path / "lost.json", replace(PROBLEM, groups=(lost, *PROBLEM.groups[1:])))
    done = qlm("plan", "--problem", path, "--method", "edf")
    assert "unplaceable: g0: giant runs on no instance" in done.output
    printed = qlm("plan", "explain", "g0", "--problem", path, "--method", "edf")
    assert (printed.exit_code, "cannot be placed: giant runs on no instance" in printed.output) == (0, True)
    nobody = stored(tmp_path / "nobody.json", replace(PROBLEM, instances=()))
    done = qlm("plan", "--problem", nobody, "--method", "edf")
    assert "unplaceable: g0: there is no instance" in done.output


def test_nothing_to_plan_is_planned(tmp_path: Path) -> None:
    path = stored(tmp_path / "nothing.json", replace(PROBLEM, groups=(), instances=()))
    done = qlm("plan", "--problem", path, "--method", "edf")
    assert "penalty 0 s (no plan is below 0 s, gap 0.0 %); no waiting request has a deadline" in done.output


def test_show_draws_and_checks(problem: Path, plan: Path) -> None:
    done = qlm("plan", "show", "--problem", problem, "--plan", plan, "--samples", "2000", "--seed", "3")
    assert done.exit_code == 0
    assert "CAPITAL: most of the group late" in done.output and "░" in done.output
    assert re.search(r"2000 samples: penalty [\d.]+ s ± [\d.]+ s, [\d.]+ ± [\d.]+ % in time", done.output)
    again = qlm("plan", "show", "--problem", problem, "--plan", plan, "--samples", "2000", "--seed", "3")
    assert again.output == done.output


def test_show_in_json_is_the_report(problem: Path, plan: Path) -> None:
    done = qlm("plan", "show", "--problem", problem, "--plan", plan, "--json", "--samples", "100")
    printed = json.loads(done.stdout)
    report = verify(PROBLEM, plan_edf(PROBLEM))
    assert printed["penalty_s"] == report.penalty_s and printed["violations"] == []
    assert [row["group"] for row in printed["rows"]] == [row.group for row in report.rows]
    assert printed["rows"][0]["completion"] == {
        "mean": report.rows[0].completion.mean,
        "var": report.rows[0].completion.var,
    }
    assert printed["sampled"]["samples"] == 100


CROWDED = random_problem(3, groups=8, instances=1, load=3.0)
"""With groups that cannot all be in time."""


def test_promises_are_shown_with_what_plans_make_of_them(tmp_path: Path) -> None:
    promised = tuple(replace(each, p_met=0.999 * (at % 2)) for at, each in enumerate(CROWDED.groups))
    wanted = replace(CROWDED, groups=promised, promise_s=6000.0)
    report = verify(wanted, plan_edf(wanted))
    kept = [row for row in report.rows if row.promised is not None and keeps_promise(row)]
    broken = [row for row in report.rows if row.promised is not None and not keeps_promise(row)]
    assert kept and broken
    path = stored(tmp_path / "promised.json", wanted)
    done = qlm("plan", "--problem", path, "--method", "edf")
    summary = f"promises: {len(kept)} of {len(kept) + len(broken)} groups kept; "
    assert f"{summary}{report.short_requests:.1f} requests short, for" in done.output
    for row, word in ((kept[0], "kept"), (broken[0], "broken")):
        printed = qlm("plan", "explain", row.group, "--problem", path, "--method", "edf").output
        share, promise = f"{100 * row.p_met:.1f} %", f"{100 * (row.promised or 0):.1f} %"
        assert f"{share} ({promise} promised: {word}) of its requests in time" in printed


def test_what_is_late_is_shown_with_the_reason(tmp_path: Path) -> None:
    problem, plan = stored(tmp_path / "crowded.json", CROWDED), tmp_path / "plan.json"
    planned = qlm("plan", "--problem", problem, "--method", "edf", "--out", plan)
    misses = find_misses(CROWDED, plan_edf(CROWDED))
    line = f"{misses.late_requests:.0f} late requests are expected in {misses.groups} groups"
    shown = qlm("plan", "show", "--problem", problem, "--plan", plan, "--why")
    for output in (planned.output, shown.output):
        lines = output.splitlines()
        rows = lines[lines.index(line) + 1 :]
        assert [row.group for row in misses.rows] == re.findall(r"^(g\d+)\t", "\n".join(rows), re.MULTILINE)
        assert all(WHY[row.reason] in output for row in misses.rows)
    assert line not in qlm("plan", "show", "--problem", problem, "--plan", plan).output
    first = qlm("plan", "show", "--problem", problem, "--plan", plan, "--why", "--rows", "1").output
    assert f"{line}; the 1 group with most of them:\n" in first
    printed = json.loads(qlm("plan", "show", "--problem", problem, "--plan", plan, "--why", "--json").stdout)
    assert printed["missed"] == json.loads(json.dumps(asdict(misses)))


def test_nothing_late_and_nothing_to_be_served_are_said(problem: Path, plan: Path, tmp_path: Path) -> None:
    loose = replace(PROBLEM, groups=tuple(replace(g, deadline_s=None) for g in PROBLEM.groups))
    none = qlm("plan", "show", "--problem", stored(tmp_path / "loose.json", loose), "--plan", plan, "--why")
    assert none.output.splitlines()[-1] == "no group is expected to miss its deadline"
    (bad := tmp_path / "bad.json").write_text('{"version": 1, "queues": {}}', "utf-8")
    broken = qlm("plan", "show", "--problem", problem, "--plan", bad, "--why")
    assert broken.exit_code == 1
    assert broken.output.splitlines()[-1] == "lateness is explained only for plans that can be served"


def test_every_reason_has_its_sentence() -> None:
    assert WHY.keys() == set(Reason)


def test_show_tells_what_is_violated_and_fails(problem: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"version": 1, "queues": {}, "penalty_s": 3.0}), "utf-8")
    done = qlm("plan", "show", "--problem", problem, "--plan", path)
    assert done.exit_code == 1
    assert "violated: each_group_once: g0 is placed nowhere" in done.output
    path.write_text(json.dumps(plan_to_plain(replace(plan_edf(PROBLEM), penalty_s=3.0))), "utf-8")
    done = qlm("plan", "show", "--problem", problem, "--plan", path)
    assert (done.exit_code, "violated: claimed_penalty: 3.0 s claimed; expected " in done.output) == (1, True)


def test_explain_tells_what_stands_before_and_what_else_would_cost(problem: Path, plan: Path) -> None:
    done = qlm("plan", "explain", "g3", "--problem", problem, "--plan", plan)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0] == "g3: m1, 18 requests, deadline in 3.6min, priority 1"
    assert lines[1] == "place 3 on i2: waits for"
    for before in ("what runs now", "g0", "g7"):
        assert any(before in line for line in lines[2:8])
    assert "starts in 64s" in lines
    assert any("last request answered in 84s" in line and "100.0 % of its requests" in line for line in lines)
    (first,) = (line for line in lines if "first in its queue" in line)
    assert "passes over a higher priority" in first and re.search(r"\+261\.\d+ s", first)
    assert sum(bool(re.search(r"^i[01]\t.* s\tmoved", line)) for line in lines) == 2


def test_explain_in_json(problem: Path, plan: Path) -> None:
    printed = json.loads(qlm("plan", "explain", "g3", "--problem", problem, "--plan", plan, "--json").stdout)
    assert [step["row"]["group"] for step in printed["steps"]] == ["g0", "g7", "g3"]
    assert {place["row"]["instance"] for place in printed["elsewhere"]} == {"i0", "i1"}
    assert printed["why_unplaceable"] is None


def test_explain_makes_the_plan_if_there_is_none(problem: Path, plan: Path) -> None:
    printed = qlm("plan", "explain", "g3", "--problem", problem, "--method", "edf")
    assert printed.output == qlm("plan", "explain", "g3", "--problem", problem, "--plan", plan).output


def test_the_help_names_all_methods() -> None:
    text = re.sub(r"\s+", "", qlm("plan", "--help").output)
    assert all(name in text for name in METHODS)


ARGUMENTS: dict[str, list[str]] = {
    "plan": ["plan", "--problem", "{path}", "--method", "edf", "--out", "{folder}/out.json"],
    "show": ["plan", "show", "--problem", "{path}", "--plan", "{path}"],
    "explain": ["plan", "explain", "g0", "--problem", "{path}"],
}


@pytest.mark.parametrize("command", ARGUMENTS)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ":1:1: Expecting value; expected JSON"),
        (b"{\n  1}", ":2:3: Expecting property name enclosed in double quotes; expected JSON"),
        (b"[]", ": problem is []; expected an object"),
        (b"\xff\xfe{}", ": byte 0 is no UTF-8; expected JSON in UTF-8"),
        (b'{"version": NaN}', ": a number is 'NaN'; expected a finite one"),
        (b'{"version": 1, "version": 1}', ": a key is 'version'; expected each key of an object once"),
        (b"[" * 100_000, ": nested too deeply; expected a problem or a plan"),
        (
            b'{"version": ' + b"1" * 5000 + b"}",
            ": problem.version is a whole number of 5000 digits; expected 1",
        ),
        (
            b'{"version": 1, "now_s": -' + b"9" * 3000 + b', "kinds": {}, "instances": [], "groups": []}',
            f": problem.now_s is -{'9' * 199}… (3001 characters); expected at least -100000000000",
        ),
        (
            b'{"version": 1, "kinds": {}, "instances": [], "groups": [',
            ":1:57: Expecting value; expected JSON",
        ),
        (
            b'{"version": 1, "now_s": 0, "kinds": {}, "instances": [], "groups": ['
            + b"0," * 999_999
            + b"0]}",
            ": number of problem.groups is 1000000; expected at most 20000",
        ),
        (b" " * (FILE_BYTES_MAX + 1), f": size is {FILE_BYTES_MAX + 1}; expected at most {FILE_BYTES_MAX}"),
    ],
    ids=lambda value: value[:12].decode("latin-1") if isinstance(value, bytes) else "",
)
def test_a_file_that_is_no_problem_gets_one_line(
    command: str, content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    filled = [each.format(path=path, folder=tmp_path) for each in ARGUMENTS[command]]
    done = qlm(*filled)
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.output
    assert done.stderr.startswith(f"qlm: {path}{message}")
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("value", ["9" * 5000, "9" * 4000, "x" * 5000])
@pytest.mark.parametrize("option", ["--seed", "--method", "--time-limit", "--instance", "--out"])
def test_a_long_value_is_not_repeated_whole(option: str, value: str, problem: Path) -> None:
    done = qlm("plan", "--problem", problem, "--method", "edf", option, value)
    assert done.exit_code in (1, 2)
    assert len(done.output) < 700


def test_a_plan_of_another_problem_is_refused(problem: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"version": 1, "queues": {"x": []}}), "utf-8")
    for command in (["show"], ["explain", "g0"]):
        done = qlm("plan", *command, "--problem", problem, "--plan", path)
        expected = f"qlm: {path}: plan.queues is 'x'; expected instances of the problem only\n"
        assert (done.exit_code, done.stderr) == (2, expected)


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["plan"], 2, "--problem FILE is missing."),
        (["plan", "show", "--plan", "{plan}"], 2, "--plan needs --problem FILE."),
        (["plan", "show", "--problem", "{problem}"], 2, "--plan FILE is missing."),
        (["plan", "explain", "g0", "--plan", "{plan}"], 2, "--plan needs --problem FILE."),
        (["plan", "explain", "g0", "--method", "edf"], 2, "--method needs --problem FILE."),
        (["plan", "explain", "--problem", "{problem}"], 2, "GROUP"),
        (["plan", "--problem", "{missing}"], 2, "missing.json: No such file or directory"),
        (["plan", "--problem", "{folder}"], 2, "Is a directory"),
        (["plan", "--problem", "{problem}", "show"], 2, "--problem goes behind show."),
        (["plan", "--json", "explain", "g0"], 2, "--json goes behind explain."),
        (["plan", "--problem", "{problem}", "--method", "magic"], 2, "magic"),
        (["plan", "--problem", "{problem}", "--time-limit", "0"], 2, "0"),
        (["plan", "--problem", "{problem}", "--time-limit", "nan"], 2, "nan"),
        (["plan", "--problem", "{problem}", "--time-limit", "1e9"], 2, "1000000000"),
        (["plan", "--problem", "{problem}", "--iterations", "-1"], 2, "-1"),
        (["plan", "--problem", "{problem}", "--seed", "-1"], 2, "-1"),
        (["plan", "--problem", "{problem}", "--seed", "9223372036854775808"], 2, "9223372036854775808"),
        (["plan", "--problem", "{problem}", "--scenarios", "0"], 2, "0"),
        (["plan", "--problem", "{problem}", "--objective", "fame"], 2, "fame"),
        (["plan", "--problem", "{problem}", "--rows", "0"], 2, "0"),
        (
            ["plan", "--problem", "{problem}", "--method", "edf", "--instance", "x"],
            2,
            "--instance is 'x'; expected an instance of the problem",
        ),
        (
            ["plan", "--problem", "{problem}", "--method", "edf", "--out", "{folder}"],
            2,
            "which is a folder; expected a file",
        ),
        (
            ["plan", "--problem", "{problem}", "--method", "edf", "--out", "{problem}/x.json"],
            2,
            "or is in, a file; expected a folder",
        ),
        (
            ["plan", "explain", "x", "--problem", "{problem}"],
            2,
            "GROUP is 'x'; expected a group of the problem",
        ),
        (
            ["plan", "explain", "x", "--problem", "{problem}", "--plan", "{plan}"],
            2,
            "GROUP is 'x'; expected a group of the problem",
        ),
        (
            ["plan", "explain", "g0", "--problem", "{problem}", "--plan", "{bad}"],
            2,
            "expected a plan that can be served; violated: each_group_once: g0 is placed nowhere",
        ),
        (["plan", "show", "--problem", "{problem}", "--plan", "{plan}", "--samples", "1"], 2, "1"),
    ],
)
def test_bad_use_gets_one_clear_line(
    arguments: list[str], code: int, complaint: str, problem: Path, plan: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps({"version": 1, "queues": {}}), "utf-8")
    folder = tmp_path / "folder"
    folder.mkdir()
    names = {"problem": problem, "plan": plan, "bad": bad, "missing": tmp_path / "missing.json"}
    done = qlm(*(each.format(folder=folder, **names) for each in arguments))
    assert (done.exit_code, done.stdout) == (code, ""), done.output
    assert isinstance(done.exception, SystemExit)
    assert complaint in done.stderr.splitlines()[-1]


DOCS = Path(__file__).parents[4] / "docs/planner-problem.md"


def test_the_example_of_the_documentation_is_true(tmp_path: Path) -> None:
    problem_text, plan_text = re.findall(r"```json\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    (problem := tmp_path / "problem.json").write_text(problem_text, "utf-8")
    (plan := tmp_path / "plan.json").write_text(plan_text, "utf-8")
    assert problem_to_plain(read_problem(problem)) == json.loads(problem_text)
    shown = qlm("plan", "show", "--problem", problem, "--plan", plan)
    assert shown.exit_code == 0, shown.output
    made = json.loads(qlm("plan", "--problem", problem, "--method", "exact", "--json").stdout)
    written = json.loads(plan_text)
    assert made.keys() == written.keys()
    for key in ("queues", "unplaceable", "method", "scale_up"):
        assert made[key] == written[key]
    for key in ("penalty_s", "expected_attainment", "lower_bound_s"):
        assert made[key] == pytest.approx(written[key], rel=1e-6)


def test_the_documentation_has_the_methods_the_constraints_and_the_limits() -> None:
    text = DOCS.read_text("utf-8")
    for name, each in METHODS.items():
        priorities = "strict" if each.keeps_priorities else "ignored"
        assert re.search(rf"^\| `{name}` \| .* \| {priorities} \|$", text, re.MULTILINE), name
    for name, value in vars(limits).items():
        if name in text or not name.isupper():
            continue
        if name not in (
            "PRIORITY_MAX",
            "BYTES_MAX",
            "SEED_MAX",
            "ITERATIONS_MAX",
            "SAMPLED_REQUESTS_MAX",
            "TIME_LIMIT_MIN_S",
        ):
            assert f"{int(value):,}".replace(",", " ") in text, name


def test_no_command_loads_a_solver_that_it_does_not_use() -> None:
    """Each takes a second to import."""
    code = "import sys, qlm.cli.main; print(*sorted({'numba', 'pyomo', 'highspy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_read_problem_is_what_was_stored(problem: Path) -> None:
    assert read_problem(problem) == PROBLEM
    assert isinstance(main, click.Group) and "plan" in main.commands


@pytest.mark.parametrize(
    ("bound_s", "penalty_s", "shown"), [(0.0, 90.0, False), (0.0, 0.0, True), (60.0, 90.0, True)]
)
def test_a_gap_is_shown_unless_any_plan_can_be_far_from_the_bound(
    bound_s: float, penalty_s: float, shown: bool
) -> None:
    plan = replace(judged(PROBLEM, plan_edf(PROBLEM)), lower_bound_s=bound_s, penalty_s=penalty_s)
    (line, *_) = summary(PROBLEM, plan, verify(PROBLEM, plan), len(PROBLEM.instances))
    assert f"no plan is below {bound_s:g} s" in line
    assert ("gap" in line) is shown


def test_a_place_that_takes_no_plan_is_named_before_planning(
    problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("qlm.cli.commands.plan.problem.solve")
    done = qlm("plan", "--problem", problem, "--method", "edf", "--out", "/proc/plan.json")
    assert done.exit_code == 1
    assert done.stderr.startswith("qlm: /proc/.plan.json.part: ")


def test_the_folder_of_a_plan_is_made(problem: Path, tmp_path: Path) -> None:
    out = tmp_path / "new/folder/plan.json"
    assert qlm("plan", "--problem", problem, "--method", "edf", "--out", out).exit_code == 0
    read_plan(out, PROBLEM)
