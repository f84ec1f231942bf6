"""Checks of the live instances: against the configuration, and for model swaps that thrash."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from qlm.cli.inspect.finding import Finding

THRASHED_MIN: Final = 3
"""Fewer swaps back within a minute are chance."""

THRASHED_SHARE: Final = 0.25

SHOWN_MAX: Final = 4
"""Models that advice names: a list of more hides the advice."""

Instance = Mapping[str, Any]


def against_configuration(seen: Mapping[str, Any]) -> Iterator[Finding]:
    """Name instances that are lost, that the configuration does not have, or has otherwise."""
    live = {each["id"]: each for each in seen["instances"]}
    configured = {each["id"]: each for each in seen.get("configured", ())}
    unplaced = {each["id"]: each["why"] for each in seen.get("unplaced", ())}
    for id, wanted in configured.items():
        if id not in live:
            yield _lost(wanted, unplaced.get(id))
        elif difference := _difference(live[id], wanted):
            yield Finding(f"configuration of {id}", False, difference, _RESTART)
    for id in sorted(live.keys() - configured.keys()) if configured else ():
        detail = f"it is live with {', '.join(live[id]['models'])}, and the gateway's configuration lacks it"
        yield Finding(f"configuration of {id}", False, detail, _RESTART)


def doubled(seen: Mapping[str, Any]) -> Iterator[Finding]:
    """Name instances for which two agents were started."""
    remedy = (
        "stop what starts the second agent, or give it another instance id; two services may start the same"
    )
    for each in seen.get("refused_agents", ()):
        yield Finding(f"agents of {each['id']}", False, f"within 10 minutes {each['why']}", remedy)


_RESTART: Final = (
    "give all parts the same configuration file, and restart those that were started with another"
)


def _lost(wanted: Instance, unplaced: str | None) -> Finding:
    check = f"instance {wanted['id']}"
    serves = f"{wanted['accelerator']}, for {', '.join(wanted['models'])}"
    if unplaced is not None:
        detail = f"it waits for a place under Ray: {unplaced} ({serves})"
        return Finding(check, False, detail, "add a node that has what it asks for")
    remedy = (
        f"start it again (`qlm agent {wanted['id']}`; `qlm serve` starts all), or look at its log; "
        "take it out of the configuration if it is gone for good"
    )
    return Finding(check, False, f"it is configured ({serves}) and has no live agent", remedy)


def _difference(live: Instance, wanted: Instance) -> str:
    return "; ".join(
        f"{key} of its agent: {_words(live[key])}, of the gateway's configuration: {_words(wanted[key])}"
        for key in ("accelerator", "models")
        if _words(live[key]) != _words(wanted[key])
    )


def _words(given: str | Sequence[str]) -> str:
    return given if isinstance(given, str) else ", ".join(sorted(given))


def thrashing(instances: Sequence[Instance]) -> Iterator[Finding]:
    """Name instances of which many swaps bring back a model that they have just swapped out."""
    for each in instances:
        stats = each["operations"]
        swaps, thrashed = stats["model_swaps"], stats["swaps_thrashed"]
        if thrashed < THRASHED_MIN or thrashed < THRASHED_SHARE * swaps:
            continue
        lost_s = sum(charge["seconds"] for charge in stats["swap_lost"])
        detail = (
            f"{thrashed} of its {swaps} swaps brought back a model within 60 s of its own swap; "
            f"{lost_s:.0f} s of {stats['observed_s']:.0f} s had no serving model"
        )
        remedy = (
            f"give one of {_shown(each['models'])} an instance of its own, or loosen the objectives that "
            "alternate; `qlm instances` has the classes that caused the swaps"
        )
        yield Finding(f"model swaps of {each['id']}", False, detail, remedy)


def _shown(models: Sequence[str]) -> str:
    return ", ".join(models) if len(models) <= SHOWN_MAX else f"its {len(models)} models"
