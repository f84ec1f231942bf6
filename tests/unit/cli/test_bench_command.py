"""Options of `qlm bench`, and what it refuses."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from qlm.cli.bench.compare import differences, paired
from qlm.cli.bench.objectives import Slo, parse_goodput, parse_reader, parse_slo
from qlm.cli.bench.rating import FIGURES, rate
from qlm.cli.bench.record import Chunk, Run, Sent
from qlm.cli.bench.report import Judging, report
from qlm.cli.bench.saved import saved_text
from qlm.cli.bench.statistics import intervals
from qlm.cli.commands.bench import running
from qlm.cli.main import main
from qlm.domain.streaming.reader import Reader
from qlm.gateway.api.bodies.parts import SloBody
from qlm.gateway.api.objective import choose
from qlm.gateway.core.limits import GatewayLimits

NOWHERE = "http://127.0.0.1:9"


def bench(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main.load("bench"), list(arguments))
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Usage"),
        (("--seed", "1"), "URL"),
        ((NOWHERE,), "--request-rate"),
        ((NOWHERE, "--request-rate", "-1"), "--request-rate"),
        ((NOWHERE, "--request-rate", "nan"), "--request-rate"),
        ((NOWHERE, "--request-rate", "1", "--burstiness", "0"), "--burstiness"),
        ((NOWHERE, "--request-rate", "1", "--skip", "5", "--num-prompts", "5"), "--skip"),
        ((NOWHERE, "--request-rate", "1", "--slo", "pace:5"), "a ttft beside a pace"),
        ((NOWHERE, "--request-rate", "1", "--slo", "tpot:5"), "ttft, pace, deadline"),
        ((NOWHERE, "--request-rate", "1", "--goodput", "itl:5"), "ttft, tpot, e2el"),
        ((NOWHERE, "--request-rate", "1", "--goodput", "ttft:0"), "above 0"),
        ((NOWHERE, "--request-rate", "1", "--reader", "fast"), "--reader"),
        ((NOWHERE, "--request-rate", "1", "--header", "key"), "KEY=VALUE"),
        ((NOWHERE, "--request-rate", "1", "--endpoint", "v1/completions"), "a path such as /v1/completions"),
        ((NOWHERE, "--request-rate", "1", "--extra-body", '{"n": 2}'), "--extra-body: n is 2; expected 1"),
        ((NOWHERE, "--request-rate", "1", "--extra-body", '{"stream": false}'), "stream is False"),
        ((NOWHERE, "--request-rate", "1", "--header", "key=two\nlines"), "in one line"),
        ((NOWHERE, "--request-rate", "1", "--header", "a key=value"), "KEY=VALUE"),
        ((NOWHERE, "--request-rate", "1", "--api-key", "two\nlines"), "--api-key"),
        ((NOWHERE, "--request-rate", "1", "--extra-body", "[]"), "JSON object"),
        ((NOWHERE, "--request-rate", "1", "--num-prompts", "1"), "--model"),
        ((NOWHERE, "--trace", "missing.csv"), "missing.csv"),
        ((NOWHERE, "--compare", "a", "b"), "none beside --compare"),
        (
            ("--compare", "a", "b", "--slo", "ttft:500", "pace:9"),
            "--slo is ('ttft:500', 'pace:9'); expected none",
        ),
        (("--compare", "a", "b", "--goodput", "ttft:500"), "none beside --compare"),
        (("--compare", "a", "b", "--save", "c"), "none beside --compare"),
        (("--compare", "a", "b", "--half-life", "nan"), "--half-life"),
        (("score", "a", "--half-life", "nan"), "'nan' is not a number"),
        ((NOWHERE, "--request-rate", "1", "--patience", "nan"), "--patience"),
        ((NOWHERE, "--request-rate", "1", "--random-range-ratio", "nan"), "--random-range-ratio"),
        ((NOWHERE, "--request-rate", "1", "--burstiness", "1e-320"), "a number from 0.0001 up"),
        ((NOWHERE, "--request-rate", "1", "--burstiness", "nan"), "a number from 0.0001 up"),
        (("score", "missing.json"), "missing.json"),
        (("score",), "FILES"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    code, output = bench(*arguments)
    assert code in (1, 2)
    assert words in output
    assert "Traceback" not in output


@pytest.mark.parametrize(("name", "words"), [("x" * 300, "name too long"), ("folder", "is a directory")])
def test_a_file_that_cannot_be_written_is_named_before_the_measurement(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("qlm.cli.commands.bench.running.measure")
    (tmp_path / "folder").mkdir()
    code, output = bench(NOWHERE, "--request-rate", "1", "--save", str(tmp_path / name))
    assert code in (1, 2) and words in output.lower()


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_what_was_measured_is_printed_when_its_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    async def measure(*_: object) -> list[Run]:
        return [run(0.5)]

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(running, "measure", measure)
    monkeypatch.setattr(running, "write_whole", full)
    file = tmp_path / "a.json"
    code, output = bench(NOWHERE, "--request-rate", "1", "--num-prompts", "2", "--save", str(file), *form)
    assert code == 1
    assert "smooth_goodput_share" in output if form else "smooth goodput, %" in output
    assert "No space left on device" in output and "written to" not in output


def test_a_saved_measurement_has_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def measure(*_: object) -> list[Run]:
        return [run(0.5)]

    monkeypatch.setattr(running, "measure", measure)
    file = tmp_path / "a.json"
    given = ("--request-rate", "1", "--num-prompts", "2", "--api-key", "hidden", "--header", "a=hidden")
    code, output = bench("http://me:hidden@127.0.0.1:9", *given, "--save", str(file))
    assert code == 0, output
    saved = file.read_text()
    assert "http://***@127.0.0.1:9" in saved and "hidden" not in saved


def test_objectives_and_readers_are_read() -> None:
    assert parse_slo(["ttft:500 pace:10", "deadline:9000"]) == Slo(500, 10, 9000)
    assert parse_slo([]) is None
    assert parse_goodput(["ttft:200", "tpot:50"]) == {"ttft": 200, "tpot": 50}
    assert parse_reader("10") == Reader(1.0, 10.0)
    assert parse_reader("4.8:500") == Reader(0.5, 4.8)


def test_an_objective_is_written_as_the_api_takes_it() -> None:
    slo = Slo(500, 10, 9000)
    assert slo.body() == {"ttft_ms": 500, "tokens_per_s": 10, "deadline_ms": 9000}
    assert slo.headers() == {
        "x-slo-ttft-ms": "500",
        "x-slo-tokens-per-s": "10",
        "x-qlm-deadline-ms": "9000",
    }


@pytest.mark.parametrize("words", ["deadline:1234567", "ttft:1234.5678 pace:4.8 deadline:2592000000"])
def test_the_server_reads_from_headers_what_it_reads_from_the_body(words: str) -> None:
    slo = parse_slo([words])
    assert slo is not None
    by_body = choose(SloBody.model_validate(slo.body()), {}, "auto", GatewayLimits(), 0)
    assert choose(None, slo.headers(), "auto", GatewayLimits(), 0) == by_body


def run(delay_s: float, requests: int = 40, pace_s: float = 0.2) -> Run:
    def sent(number: int) -> Sent:
        at_s, wait_s = number * pace_s, delay_s + number % 7 / 2
        times = [at_s + wait_s + 0.05 * token for token in range(10)]
        chunks = tuple(Chunk(each, 1) for each in times)
        return Sent(scheduled_s=at_s, sent_s=at_s, end_s=times[-1], chunks=chunks, asked_tokens=10)

    return Run(requests=tuple(map(sent, range(requests))), counting="by hand", seed=1)


def saved(path: Path, result: Run) -> str:
    path.write_bytes(saved_text([result], report([result], Judging(resamples=10)), {"seed": 1}))
    return str(path)


def test_a_saved_file_gives_the_same_report(tmp_path: Path) -> None:
    failed = Sent(scheduled_s=9.0, sent_s=9.0, end_s=9.5, error="HTTP 429: full", asked_tokens=10)
    whole = Run(requests=(*run(0.5).requests, failed), counting="by hand", seed=1)
    path = saved(tmp_path / "a.json", whole)
    code, output = bench("score", path, "--json")
    assert code == 0
    (scored,) = json.loads(output)
    assert scored["readers"][0]["idle_max_s"] is None
    assert (
        scored["readers"][0]["qoe_star_mean"]
        == json.loads(Path(path).read_text())["report"]["readers"][0]["qoe_star_mean"]
    )
    assert scored["errors"] == {"HTTP 429: full": 1}
    code, output = bench("score", path)
    assert "never" in output
    assert "1 x HTTP 429: full" in output


def test_with_an_infinite_half_life_nobody_leaves(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.json", run(5.0))
    code, output = bench("score", path, "--half-life", "inf", "--json")
    assert code == 0
    (scored,) = json.loads(output)
    assert scored["half_life_s"] is None, "as other infinite values in JSON"
    assert {each["smooth_goodput_share"] for each in scored["readers"]} == {1.0}


def test_patience_may_be_infinite() -> None:
    code, output = bench(NOWHERE, "--request-rate", "1", "--num-prompts", "1", "--patience", "inf")
    assert code == 1
    assert "--patience" not in output
    assert "--model" in output, "the server is asked for its models"


def test_pairing_makes_a_small_difference_certain() -> None:
    first, second = run(0.9), run(1.0)
    other = run(1.0, pace_s=0.3)
    assert paired([first], [second])
    assert not paired([first], [other])
    reader = Reader(0.5, 10.0)
    close = differences([first], [second], reader)["qoe_star_mean"]
    apart = differences([first], [other], reader)["qoe_star_mean"]
    assert close.sure
    assert close.difference < 0
    assert close.high - close.low < (apart.high - apart.low) / 3
    assert not differences([first], [first], reader)["qoe_star_mean"].sure


def test_figures_that_are_infinite_on_both_sides_do_not_differ() -> None:
    failed = Sent(scheduled_s=0.0, sent_s=0.0, end_s=1.0, error="refused", asked_tokens=10)
    hopeless = Run(requests=(failed,) * 5, counting="by hand", seed=1)
    better = Run(requests=run(0.0, requests=5).requests, counting="by hand", seed=1)
    same = differences([hopeless], [hopeless], Reader(1.0, 10.0))["idle_p99_s"]
    assert (same.first, same.difference, same.sure) == (float("inf"), 0, False)
    change = differences([hopeless], [better], Reader(1.0, 10.0))["idle_p99_s"]
    assert (change.difference, change.high, change.sure) == (-float("inf"), -float("inf"), True)


def test_results_of_different_sizes_are_compared_too(tmp_path: Path) -> None:
    files = saved(tmp_path / "a.json", run(0.5)), saved(tmp_path / "b.json", run(3.0, requests=25))
    code, output = bench("--compare", *files, "--reader", "10")
    assert code == 0, output
    assert "not paired" in output
    assert "*" in output


def test_a_small_result_has_all_resamples_beside_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qlm.cli.bench.statistics._VALUES_MAX", 400)
    reader = Reader(0.5, 10.0)
    few, equal = run(0.9, requests=4), Run(requests=run(0.9).requests[:1] * 40, counting="by hand")
    found = differences([few], [equal], reader)["qoe_star_mean"]
    # The large one has equal requests, so the interval has the width of the small one alone.
    alone = rate([few], reader)
    rng = np.random.default_rng(1)
    low, high = intervals(alone, 4, {"mean": FIGURES["qoe_star_mean"]}, rng)["mean"]
    assert found.high - found.low == pytest.approx(high - low)


@pytest.mark.parametrize("option", [("--goodput", "ttft:700"), ("--goodput=ttft:700",)])
def test_several_words_after_goodput_are_its_words_as_in_vllm(
    tmp_path: Path, option: tuple[str, ...]
) -> None:
    path = saved(tmp_path / "a.json", run(0.5))
    code, output = bench("score", *option, "e2el:9000", path, "--json")
    assert code == 0, output
    assert json.loads(output)[0]["goodput_ms"] == {"ttft": 700, "e2el": 9000}
