"""Table of recoveries over all rounds, and counts."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from benchmarks.chaos.faults.kinds import KINDS
from benchmarks.chaos.play import Round
from benchmarks.chaos.recovery import Recovery
from benchmarks.chaos.verdict import Verdict

_FIGURES = ("repaired_s", "new_request_s", "at_once_s", "all_ended_s", "silence_s")


def table(recoveries: Sequence[Recovery]) -> list[dict[str, Any]]:
    """Return one row per fault: count, median and worst of each figure; None where one was never reached."""
    rows = []
    for fault in KINDS:
        of_fault = [each for each in recoveries if each.fault == fault]
        if not of_fault:
            continue
        row: dict[str, Any] = {"fault": fault, "times": len(of_fault)}
        for figure in _FIGURES:
            values = [getattr(each, figure) for each in of_fault]
            known = None not in values
            row[figure] = {
                "median": round(statistics.median(values), 2) if known else None,
                "worst": round(max(values), 2) if known else None,
            }
        rows.append(row)
    return rows


def total(rounds: Sequence[Round]) -> Verdict:
    """The counts of all rounds."""
    verdict = Verdict()
    for each in rounds:
        verdict.add(each.verdict)
    return verdict


def show(rounds: Sequence[Round]) -> None:
    """Print table and counts."""
    print("seconds from the fault: median (worst)")
    print(f"{'fault':<26}{'times':>5}  " + "  ".join(f"{name[:-2]:>16}" for name in _FIGURES))
    for row in table([one for each in rounds for one in each.recoveries]):
        cells = (_cell(row[figure]) for figure in _FIGURES)
        print(f"{row['fault']:<26}{row['times']:>5}  " + "  ".join(f"{cell:>16}" for cell in cells))
    verdict = total(rounds)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(verdict.accepted.items()))
    print(f"accepted {verdict.accepted.total()} ({kinds})")
    print(f"lost {verdict.lost}, answered twice {verdict.twice}, broken streams {verdict.broken}")
    print(f"promises not kept during a fault: {verdict.unkept}")
    print(f"never accepted, and refused for good: {verdict.refused}")
    print(f"after a deletion: output_lost {verdict.output_lost}, answers gone unfetched {verdict.gone}")


def as_json(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return everything as plain data."""
    return {
        "table": table([one for each in rounds for one in each.recoveries]),
        "verdict": counts(total(rounds)),
        "rounds": [asdict(each) | {"verdict": counts(each.verdict)} for each in rounds],
    }


def from_json(saved: Mapping[str, Any]) -> list[Round]:
    """Read the rounds of a saved result."""
    return [
        Round(
            recoveries=[Recovery(**one) for one in each["recoveries"]],
            unkept=each["unkept"],
            skipped=each["skipped"],
            verdict=Verdict(**(each["verdict"] | {"accepted": Counter(each["verdict"]["accepted"])})),
        )
        for each in saved["rounds"]
    ]


def counts(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain data."""
    return {
        field.name: dict(verdict.accepted) if field.name == "accepted" else getattr(verdict, field.name)
        for field in fields(verdict)
    }


def _cell(figure: dict[str, float | None]) -> str:
    return "never" if figure["median"] is None else f"{figure['median']:.2f} ({figure['worst']:.2f})"
