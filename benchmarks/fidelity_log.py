"""Log of the real engine's first runs, and what the engine model makes of it without server and network."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.fidelity_client import Answer
from benchmarks.fidelity_workload import Planned
from qlm.cli.profiling.judging import level_lines, signed
from qlm.cli.profiling.request_log import read_request_log
from qlm.rct_estimator.profiles.file import parse_profile_text
from qlm.simulator.evaluation.fidelity import LevelFidelity, fidelity

_HEADER = "load,arrival_s,prompt_tokens,output_tokens,first_token_s,end_s"


def write_log(path: Path, runs: Mapping[str, tuple[Sequence[Planned], Sequence[Answer]]]) -> None:
    """Write what was asked and answered at each load, as `qlm evaluate fidelity` reads it."""
    rows = [
        f"{load},{one.at_s:.9f},{one.prompt_tokens},{one.output_tokens},"
        f"{max(one.at_s, answer.token_s[0]):.9f},{answer.token_s[-1]:.9f}"
        for load, (planned, answers) in runs.items()
        for one, answer in zip(planned, answers, strict=True)
    ]
    path.write_text("\n".join([_HEADER, *rows, ""]), "utf-8")


def replayed(log: Path, profile: str) -> list[LevelFidelity]:
    """Replay a log with the engine model of a profile, given as text."""
    return fidelity(read_request_log(log), parse_profile_text(profile, "profile"))


def show_replayed(name: str, levels: Sequence[LevelFidelity]) -> None:
    """Print the errors of means by load."""
    for level in levels:
        means = (level.ttft, level.tpot, level.e2e)
        errors = "".join(f"{signed(None if one is None else one.error['mean']):>9}" for one in means)
        print(f"{level.level:>10} {name:<7} {errors} {level.e2e.each or 0:8.1%}")
        for line in level_lines(level):
            print(f"          {line}")
