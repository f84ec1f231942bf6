"""Reports of the fidelity benchmark as plain data and as tables."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmarks.fidelity_compare import Difference, Load, Verdict, compare
from benchmarks.fidelity_run import Cores, Run, disturbed
from benchmarks.fidelity_servers import SEQS_MAX
from benchmarks.fidelity_workload import Planned

SATURATED = "saturated"


@dataclass(frozen=True)
class Replay:
    """Runs at one load in one round: of the real engine in order of time, then one of the emulated engine."""

    load: str
    planned: tuple[Planned, ...]
    runs: tuple[Run, ...]

    @cached_property
    def compared(self) -> Load:
        """Comparison of the runs."""
        *real, emulated = (one.answers for one in self.runs)
        return compare(real, emulated, places=SEQS_MAX)


@dataclass(frozen=True)
class Round:
    """Results of one round.

    Attributes:
        seed: Seed of its requests.
        profile: Text of the profile file.
        profiling: Processor use while the profile was measured, for each part; none if it was given.
        saturation_rps: Completions per second of the engine with a full batch.
        replays: One replay per load.
    """

    seed: int
    profile: str
    profiling: tuple[Cores, ...]
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
                "profiling": [dataclasses.asdict(cores) for cores in one.profiling],
                "loads": {replay.load: _plain_replay(replay) for replay in one.replays},
            }
            for one in rounds
        ],
    }


def _plain_replay(replay: Replay) -> dict[str, Any]:
    engines = [*(f"real {number}" for number in range(1, len(replay.runs))), "emulated"]
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
    print(disturbed([one.cores for one in runs] + [cores for one in rounds for cores in one.profiling]))
    print(
        f"the client used at most {max(one.cores.client for one in runs):.2f} cores; "
        f"requests left at most {max(one.late_max_s for one in runs) * 1000:.0f} ms late"
    )
    print("saturated at", ", ".join(f"{one.saturation_rps:.1f}" for one in rounds), "requests/s")
    print("\nend-to-end latency, s   P50, P95, P99 of each real run; of the emulated run")
    for name, load in _by_load(rounds):
        print(f"{name}  " + "; ".join("".join(f"{q:6.2f}" for q in of) for of in load.quantiles_s))
    print("\nerror of the emulated run against each real run (of these against each other)")
    for name, load in _by_load(rounds):
        print(f"{name}  each {_each(load.model)} ({_each(load.own)})")
        for what in ("bias", "p95", "first_token_bias", "pace_bias"):
            print(f"{'':18} {_TITLES[what]:>13} {_signed(load.model, what)} ({_signed(load.own, what)})")
    print("\noutput tokens/s, steady part: of each real run, emulated; error of emulated (of the real runs)")
    for name, load in _by_load(rounds):
        if name.strip().startswith(SATURATED):
            paces = "".join(f"{pace or 0:7.0f}" for pace in load.tokens_per_s)
            errors = f"{_signed(load.model, 'throughput')} ({_signed(load.own, 'throughput')})"
            print(f"{name} {paces}   {errors}")
    print("\nmedian of all comparisons of all rounds")
    for verdict in verdicts:
        state = "passed" if verdict.passed else "FAILED"
        own = "" if verdict.own is None else f"(the engine itself {verdict.own:.1%})"
        print(f"  {verdict.name:<34} {verdict.value:6.1%} {own:<26} at most {verdict.bound:.1%}  {state}")


_TITLES = {"bias": "bias", "p95": "P95", "first_token_bias": "first token", "pace_bias": "further tokens"}


def _each(differences: Sequence[Difference]) -> str:
    return " ".join(f"{one.each:.1%}" for one in differences)


def _signed(differences: Sequence[Difference], what: str) -> str:
    values = [getattr(one, what) for one in differences]
    return " ".join("-" if value is None else f"{value:+.1%}" for value in values)


def _by_load(rounds: Sequence[Round]) -> Iterator[tuple[str, Load]]:
    for load in [replay.load for replay in rounds[0].replays]:
        for one in rounds:
            yield f"{load:>10} seed {one.seed:<2}", one.replay(load).compared
