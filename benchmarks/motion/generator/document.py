"""The scenario file of a draft, once its rates and lengths are known."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import yaml

from benchmarks.motion.generator.chance import rounded
from benchmarks.motion.generator.demand import DrawnArrivals, DrawnLengths, ModelDemand
from benchmarks.motion.generator.draft import Draft
from qlm.rct_estimator.profiles.builtin import builtin_profiles

BACKLOG_S: Final = 2.0
"""Time in which a backlog comes."""

HORIZON: Final = 3.0
"""End of a simulation, in lengths of the run: a policy that serves half of load 1.5 is done by then."""

HORIZON_MORE_S: Final = 60.0

PAST_AGE_S: Final = 7200.0
"""Age of the history: lengths of that time still count, arrival rates do not."""

PROMPT_SHARE: Final = 0.6
OUTPUT_SHARE: Final = 0.2
"""Longest prompt and answer, as shares of the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a drawn scenario.

    Attributes:
        rate_rps: Requests per second at load 1.0.
        lasts_s: Time from the first to the last request, roughly.
        lengths: Factor on the drawn lengths.
    """

    rate_rps: float
    lasts_s: float
    lengths: float


@cache
def contexts() -> dict[str, int]:
    """Return the shortest context of the shipped profiles, by model."""
    found: dict[str, int] = {}
    for profile in builtin_profiles():
        tokens = min(profile.context_tokens, profile.kv_tokens - profile.block_tokens)
        found[profile.model] = min(tokens, found.get(profile.model, tokens))
    return found


def file_text(draft: Draft, size: Size, notes: list[str]) -> str:
    """Return the text of the scenario file; `notes` begin it, as comments."""
    plain = yaml.safe_dump(document(draft, size), sort_keys=False, default_flow_style=None, width=110)
    return "".join(f"# {line}\n" for line in notes) + plain


def document(draft: Draft, size: Size) -> dict[str, Any]:
    """Return the scenario as plain values."""
    fleet = draft.fleet
    made: dict[str, Any] = {
        "name": f"drawn-{draft.seed:05d}",
        "capacity_rps": rounded(size.rate_rps, 4),
        "models": [{"id": id, "profile": profile} for id, profile in fleet.models.items()],
        "instances": [
            {
                "id": each.id,
                "accelerator": each.kind[0],
                "gpus": each.kind[1],
                "models": list(each.models),
                "host_memory_gib": fleet.host_memory_gib,
            }
            for each in fleet.instances
        ],
        "slo_classes": {name: dict(objective) for name, objective in draft.classes.items()},
        "workload": [*_streams(draft, size), *_backlog(draft, size)],
        "history": _past(draft, size),
        "profile_errors": list(_errors(draft)),
        "faults": list(_faults(draft, size)),
        "controller": {"min_interval_s": 0.5, "quiet_s": 1.0},
        "limits": {"host_kv_gib": draft.host_kv_gib, "horizon_s": _horizon_s(size)},
    }
    return {key: value for key, value in made.items() if value not in ([], None)}


def _horizon_s(size: Size) -> float:
    return rounded(HORIZON * size.lasts_s + HORIZON_MORE_S)


def _streams(draft: Draft, size: Size) -> Iterator[dict[str, Any]]:
    rest = 1.0 if draft.backlog is None else 1 - draft.backlog.share
    for part, phase in enumerate(draft.phases):
        start_s = rounded(phase.start * size.lasts_s, 4)
        lasts_s = rounded((phase.end - phase.start) * size.lasts_s, 4)
        for number, (id, demand) in enumerate(zip(draft.fleet.models, draft.demands, strict=True)):
            rate_rps = rest * size.rate_rps * phase.shares[number]
            if rate_rps * lasts_s < 1e-3:
                continue
            yield {
                "name": f"{id}-{part}",
                "arrivals": _arrivals(demand.arrivals, rate_rps, start_s, lasts_s),
                **_requests(draft, size, id, demand),
            }


def _backlog(draft: Draft, size: Size) -> Iterator[dict[str, Any]]:
    backlog = draft.backlog
    if backlog is None:
        return
    id = list(draft.fleet.models)[backlog.model]
    rate_rps = backlog.share * size.rate_rps * size.lasts_s / BACKLOG_S
    yield {
        "name": f"{id}-backlog",
        "arrivals": _arrivals(
            DrawnArrivals(process="poisson"), rate_rps, rounded(backlog.at * size.lasts_s, 4), BACKLOG_S
        ),
        **_requests(draft, size, id, draft.demands[backlog.model]),
        "slo": list(draft.classes)[-1],
    }


def _past(draft: Draft, size: Size) -> dict[str, Any] | None:
    """Return answers of long ago, whose rates no longer count; None without any."""
    streams = list(_history(draft, size))
    return {"age_s": PAST_AGE_S, "workload": streams} if streams else None


def _history(draft: Draft, size: Size) -> Iterator[dict[str, Any]]:
    for (id, demand), past in zip(
        zip(draft.fleet.models, draft.demands, strict=True), draft.disturbances.history, strict=False
    ):
        yield {
            "name": id,
            "arrivals": {"poisson": {"rate_rps": 1, "requests": past.answers}},
            **_requests(draft, size, id, demand, answers=past.factor),
        }


def _requests(
    draft: Draft, size: Size, id: str, demand: ModelDemand, *, answers: float = 1.0
) -> dict[str, Any]:
    """Return the keys of a stream besides its arrivals; answers are `answers` times as long."""
    context = contexts()[draft.fleet.models[id]]
    return {
        "lengths": {
            "prompt_tokens": _lengths(demand.prompt, size.lengths, round(PROMPT_SHARE * context)),
            "output_tokens": _lengths(demand.output, size.lengths * answers, round(OUTPUT_SHARE * context)),
        },
        "model": id,
        "max_tokens": {"at_least_output": 1024},
        "slo": {"shares": dict(draft.mixes[id])},
    }


def _lengths(drawn: DrawnLengths, factor: float, most: int) -> dict[str, Any]:
    median = min(most, max(1.0, drawn.median * factor))
    return {"lognormal": {"median": rounded(median), "sigma": rounded(drawn.sigma, 2), "max": most}}


def _arrivals(drawn: DrawnArrivals, rate_rps: float, start_s: float, lasts_s: float) -> dict[str, Any]:
    common = {"duration_s": lasts_s, "start_s": start_s}
    match drawn.process:
        case "gamma":
            return {"gamma": {"rate_rps": rounded(rate_rps, 4), "cv": rounded(drawn.cv, 2), **common}}
        case "on_off":
            period_s = lasts_s / drawn.cycles
            on_s = rounded(drawn.on_share * period_s, 4)
            return {
                "on_off": {
                    "rate_rps": rounded(rate_rps * period_s / on_s, 4),
                    "on_s": on_s,
                    "off_s": rounded(period_s - on_s, 4),
                    **common,
                }
            }
        case _:
            return {"poisson": {"rate_rps": rounded(rate_rps, 4), **common}}


def _errors(draft: Draft) -> Iterator[dict[str, Any]]:
    for wrong in draft.disturbances.wrong:
        model = {} if wrong.model is None else {"model": wrong.model}
        yield {
            **model,
            "accelerator": wrong.accelerator,
            "iterations": rounded(wrong.iterations),
            "swaps": rounded(wrong.swaps),
        }


def _faults(draft: Draft, size: Size) -> Iterator[dict[str, Any]]:
    for absence in draft.disturbances.absences:
        at_s, down_s = rounded(absence.at * size.lasts_s), rounded(absence.down * size.lasts_s)
        yield {"kill_instance": {"at_s": at_s, "instance": absence.instance, "down_s": down_s}}
    if draft.disturbances.slow is not None:
        instance, factor = draft.disturbances.slow
        yield {
            "slow_instance": {
                "at_s": 0,
                "instance": instance,
                "for_s": _horizon_s(size),
                "factor": rounded(factor),
            }
        }
