"""`qlm profile` against an emulated engine in real time: does it find the speed the engine was given?"""

import itertools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from qlm.cli.commands.profile.command import profile_command
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.file import parse_profile_text
from qlm.rct_estimator.profiles.fit import split
from qlm.rct_estimator.profiles.points import errors
from qlm.rct_estimator.profiles.profile import Profile, SourceKind
from support.ports import free_port
from support.process import ServerProcess

pytestmark = pytest.mark.alone

PAGE = Path(__file__).resolve().parents[2] / "docs/profiles.md"
FIGURE = r"(?<![\w.-])\d[\d.]*(?:e[+-]?\d+)?"
ATTEMPTS = 3
PREFILLS = ((1, 128), (1, 512), (1, 2048), (2, 768), (4, 256), (4, 512))
DECODES = tuple(itertools.product((1, 4, 16, 64), (128, 512, 2048)))
TRUTH = find_profile(builtin_profiles(), "llama-3-8b", "A100")


@dataclass(frozen=True)
class Emulated:
    url: str
    folder: Path

    def profile(self, *arguments: str) -> Result:
        return CliRunner().invoke(profile_command, [self.url, "--accelerator", "A100", *arguments])


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    folder, port = tmp_path_factory.mktemp("emulated"), free_port()
    qlm = str(Path(sys.executable).with_name("qlm"))
    argv = [qlm, "emulate", "--model", TRUTH.model, "--accelerator", "A100", "--port", str(port)]
    server = ServerProcess("emulated", argv, env=dict(os.environ), folder=folder)
    server.start()
    try:
        server.wait_ready(lambda: "ready on" in server.log_file.read_text(), timeout_s=30)
        yield Emulated(f"http://127.0.0.1:{port}", folder)
    finally:
        server.kill()


@pytest.fixture(scope="module")
def measured(engine: Emulated) -> tuple[Result, Profile]:
    """Measure in real time, and again where something else took the processor meanwhile."""
    for attempt in range(ATTEMPTS):
        file = engine.folder / "new" / "folder" / f"measured-{attempt}.yaml"
        result = engine.profile("--quick", "--out", str(file))
        assert result.exit_code == 0, result.output
        profile = parse_profile_text(file.read_text("utf-8"), str(file))
        if not off(profile):
            break
    return result, profile


def off(profile: Profile) -> list[str]:
    """Return the times that differ from those of the engine by over a tenth."""
    prefills = [(each, TRUTH.prefill_ms(*each), profile.prefill_ms(*each)) for each in PREFILLS]
    decodes = [(each, TRUTH.decode_ms(*each), profile.decode_ms(*each)) for each in DECODES]
    return [
        f"{each}: {found_ms:.2f} ms, not {truth_ms:.2f}"
        for each, truth_ms, found_ms in prefills + decodes
        if abs(found_ms - truth_ms) > 0.1 * truth_ms
    ]


def test_the_measured_profile_predicts_what_the_engine_does_within_10_percent(
    measured: tuple[Result, Profile],
) -> None:
    assert off(measured[1]) == []


def test_the_profile_says_what_was_measured_and_takes_the_rest_from_the_shipped_one(
    measured: tuple[Result, Profile],
) -> None:
    profile = measured[1]
    assert (profile.model, profile.accelerator, profile.gpus) == ("llama-3-8b", "A100", 1)
    assert profile.kv_tokens == TRUTH.kv_tokens
    assert profile.context_tokens == TRUTH.context_tokens
    for name in ("linear_ms", "kv_ms", "kv_tokens", "block_tokens", "context_tokens"):
        source = profile.sources[name]
        assert source.kind is SourceKind.MEASURED
        assert re.search(r"on \d{4}-\d\d-\d\d at vLLM 0\.32\.0\+qlm\.emulated", source.text), name
    for name in ("weights_bytes", "swap_warm_s", "swap_cold_s", "kv_bytes_per_token"):
        assert getattr(profile, name) == getattr(TRUTH, name)
        assert profile.sources[name] == TRUTH.sources[name]


def test_the_printed_quality_is_that_of_the_points_in_the_file(measured: tuple[Result, Profile]) -> None:
    result, profile = measured
    assert profile.fit is not None
    line = re.search(r"(\d+) points, error (\S+)% mean, \S+% at most; held out (\S+)% mean", result.output)
    assert line is not None
    assert int(line[1]) == len(profile.fit.points) >= 8
    for part, printed in zip(split(profile.fit.points), line.groups()[1:], strict=True):
        assert errors(profile.iteration, part)[0] * 100 == pytest.approx(float(printed), abs=0.2)


def test_the_page_shows_the_lines_that_are_printed(measured: tuple[Result, Profile]) -> None:
    """Its figures are of another run; lines that only some fits have are left out on the page."""
    (shown,) = re.findall(r"^\$ qlm profile .*\n((?:.+\n)*?)```", PAGE.read_text("utf-8"), re.MULTILINE)
    printed = measured[0].stdout
    assert shown.splitlines()[0] == printed.splitlines()[0]
    always = re.compile(
        r"iteration  ms = linear\(N\) \+|linear\(N\)  |# points, error|request    # ms|written to "
    )
    forms = [
        [match[0] for line in text.splitlines() if (match := always.match(re.sub(FIGURE, "#", line)))]
        for text in (shown, printed)
    ]
    assert forms[0] == forms[1]
    assert len(forms[0]) == 5
    of_some_fits = re.compile(
        r"not identified: |skipped: |profile .* is extrapolated|\w+ is at its limit by "
    )
    others = [line for line in shown.splitlines()[1:] if not always.match(re.sub(FIGURE, "#", line))]
    assert all(map(of_some_fits.match, others)), others


def test_a_file_that_exists_is_not_overwritten(engine: Emulated) -> None:
    file = engine.folder / "mine.yaml"
    file.write_text("precious")
    result = engine.profile("--quick", "--out", str(file))
    assert result.exit_code == 2
    assert "expected a file that does not exist, or --force" in result.output
    assert file.read_text() == "precious"


def test_what_cannot_be_measured_is_asked_for_by_its_flags(engine: Emulated) -> None:
    result = engine.profile(
        "--name", "mine", "--weights-bytes", "16e9", "--out", str(engine.folder / "x.yaml")
    )
    assert result.exit_code == 2
    assert "expected --kv-bytes-per-token, --accelerator-memory-bytes, --swap-warm-s" in result.output
    assert "--weights-bytes" not in result.output


def test_an_unknown_model_and_a_dead_engine_are_one_clear_line(engine: Emulated) -> None:
    result = engine.profile("--model", "gpt-9")
    assert (result.exit_code, result.output) == (
        2,
        "qlm: --model is 'gpt-9'; expected one of llama-3-8b\n",
    )
    dead = CliRunner().invoke(profile_command, [f"http://127.0.0.1:{free_port()}", "--accelerator", "A100"])
    assert dead.exit_code == 1
    assert dead.output.startswith("qlm: no engine answers at http://127.0.0.1:")
    assert dead.output.count("\n") == 1
    assert "ConnectionKey" not in dead.output


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(engine: Emulated) -> None:
    blocked = engine.folder / "file"
    blocked.write_text("")
    refused = engine.profile("--quick", "--out", str(blocked / "x.yaml"))
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
    assert "expected a folder" in refused.output
    asked = engine.profile("--name", "mine", "--out", str(engine.folder / "other" / "x.yaml"))
    assert asked.exit_code == 2
    assert "expected --weights-bytes" in asked.output
