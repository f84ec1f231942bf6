"""Reports of the fidelity benchmark as plain data and as tables."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmarks.fidelity_compare import Load, Verdict, compare
from benchmarks.fidelity_run import Cores, Run, disturbed
from benchmarks.fidelity_servers import SEQS_MAX
from benchmarks.fidelity_workload import Planned

SATURATED = "saturated"


@dataclass(frozen=True)
class Replay:
    """Runs at one load in one round: twice the real engine, once the emulated engine."""

    load: str
    planned: tuple[Planned, ...]
    runs: tuple[Run, Run, Run]

    @cached_property
    def compared(self) -> Load:
        """Comparison of the runs."""
        real, again, emulated = (one.answers for one in self.runs)
        return compare(real, again, emulated, places=SEQS_MAX)


@dataclass(frozen=True)
class Round:
    """Results of one round.

    Attributes:
        seed: Seed of its requests.
        profile: Text of the profile file.
        profiling: Processor use while the profile was measured; None if it was given.
        saturation_rps: Completions per second of the engine with a full batch.
        replays: One replay per load.
    """

    seed: int
    profile: str
    profiling: Cores | None
    saturation_rps: float
    replays: tuple[Replay, ...]

    def replay(self, load: str) -> Replay:
        """Return the replay at a load."""
        return next(one for one in self.replays if one.load == load)


def plain(rounds: Sequence[Round], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Convert the results to plain data for JSON, with all requests for later questions."""
    return {
        "verdicts": [dataclasses.asdict(verdict) | {"passed": verdict.passed} for verdict in verdicts],
        "rounds": [
            {
                "seed": one.seed,
                "saturation_rps": one.saturation_rps,
                "profile": one.profile,
                "profiling": one.profiling and dataclasses.asdict(one.profiling),
                "loads": {replay.load: _plain_replay(replay) for replay in one.replays},
            }
            for one in rounds
        ],
    }


def _plain_replay(replay: Replay) -> dict[str, Any]:
    engines = ("real", "again", "emulated")
    return {
        "compared": dataclasses.asdict(replay.compared),
        "cores": [dataclasses.asdict(one.cores) for one in replay.runs],
        "columns": ["due_s", "prompt_tokens", "output_tokens"]
        + [f"{engine} {what}" for engine in engines for what in ("first_s", "end_s")],
        "requests": [
            [
                round(one.at_s, 5),
                one.prompt_tokens,
                one.output_tokens,
                *(
                    round(r.answers[number].token_s[end] - one.at_s, 5)
                    for r in replay.runs
                    for end in (0, -1)
                ),
            ]
            for number, one in enumerate(replay.planned)
        ],
    }


def show(rounds: Sequence[Round], verdicts: Sequence[Verdict]) -> None:
    """Print the tables."""
    runs = [one for a_round in rounds for replay in a_round.replays for one in replay.runs]
    print(disturbed([one.cores for one in runs] + [one.profiling for one in rounds if one.profiling]))
    print(
        f"the client used at most {max(one.cores.client for one in runs):.2f} cores; "
        f"requests left at most {max(one.late_max_s for one in runs) * 1000:.0f} ms late"
    )
    print("saturated at", ", ".join(f"{one.saturation_rps:.1f}" for one in rounds), "requests/s")
    print("\nend-to-end           real, s            again, s           emulated, s        error of emulated")
    print(
        "latency            P50   P95   P99     P50   P95   P99     P50   P95   P99    "
        "each / again (self)  bias / again  P95 / again (self)"
    )
    for name, load in _by_load(rounds):
        times = "  ".join("".join(f"{q:6.2f}" for q in quantiles) for quantiles in load.quantiles_s)
        print(
            f"{name} {times}  {load.model.each:6.1%} /{load.model_again.each:6.1%} ({load.own.each:.1%}) "
            f"{load.model.bias:+.1%} / {load.model_again.bias:+.1%} "
            f"{load.model.p95:+.1%} / {load.model_again.p95:+.1%} ({load.own.p95:+.1%})"
        )
    print("\nagainst the first real run, means   first token (self)   further tokens (self)")
    for name, load in _by_load(rounds):
        first = f"{load.model.first_token_bias:+.1%} ({load.own.first_token_bias:+.1%})"
        print(f"{name} {first:>34} {f'{load.model.pace_bias:+.1%} ({load.own.pace_bias:+.1%})':>23}")
    print("\noutput tokens/s, steady part       real   again  emulated  error / again / self")
    for name, load in _by_load(rounds):
        if name.strip().startswith(SATURATED):
            paces = "".join(f"{pace or 0:8.0f}" for pace in load.tokens_per_s)
            errors = (_share(one.throughput) for one in (load.model, load.model_again, load.own))
            print(f"{name:<30} {paces}    {' / '.join(errors)}")
    print("\nmedian of both comparisons of all rounds")
    for verdict in verdicts:
        state = "passed" if verdict.passed else "FAILED"
        own = "" if verdict.own is None else f"(the engine itself {verdict.own:.1%})"
        print(f"  {verdict.name:<34} {verdict.value:6.1%} {own:<26} at most {verdict.bound:.1%}  {state}")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def _by_load(rounds: Sequence[Round]) -> Iterator[tuple[str, Load]]:
    for load in [replay.load for replay in rounds[0].replays]:
        for one in rounds:
            yield f"{load:>10} seed {one.seed:<2}", one.replay(load).compared
