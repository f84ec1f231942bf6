"""Checks of how late requests are, by class, and of what would help."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from qlm.cli.inspect.finding import Finding
from qlm.cli.inspect.render import span

LATE_SHARE: Final = 0.1
"""A class is found if more than this share of its requests were late."""

LATE_MIN: Final = 2
"""One late request is chance."""


_NO_ANSWERS: Final = "they ended without an answer: `qlm requests --late` lists them, with their outcomes"


def late_classes(
    attainment: Sequence[Mapping[str, Any]],
    instances: Sequence[Mapping[str, Any]],
    missing: Mapping[str, int],
) -> Iterator[Finding]:
    """Name classes of which more than a tenth was late, those of a model together, and what to add.

    Args:
        attainment: Attainment of classes, as the gateway counts it.
        instances: The live instances.
        missing: Instances that the controller recommends beyond the live ones, by accelerator.
    """
    late: dict[str, list[Mapping[str, Any]]] = {}
    for each in attainment:
        if each["missed"] >= LATE_MIN and each["missed"] > LATE_SHARE * each["judged"]:
            late.setdefault(each["model"], []).append(each)
    for model, classes in late.items():
        answered = any(each["mean_late_by_s"] is not None for each in classes)
        remedy = _remedy(model, instances, missing) if answered else _NO_ANSWERS
        if len(classes) > 1:
            detail = "; ".join(f"{_name(each)}: {_lateness(each)}" for each in classes)
            yield Finding(f"objectives of {model}", False, f"in the last 10 minutes, {detail}", remedy)
        else:
            (one,) = classes
            detail = f"{_lateness(one)}, in the last 10 minutes"
            yield Finding(f"objective {_name(one)} of {model}", False, detail, remedy)


def _name(each: Mapping[str, Any]) -> str:
    return f"{each['slo_class']}" + (f", priority {each['priority']}" if each["priority"] else "")


def _lateness(each: Mapping[str, Any]) -> str:
    return f"{each['missed']} of {each['judged']} requests were late{_by(each)}"


def _by(each: Mapping[str, Any]) -> str:
    if each["mean_late_by_s"] is None:
        return ""
    return f", by {span(each['mean_late_by_s'])} on average, {span(each['max_late_by_s'])} at most"


def _remedy(model: str, instances: Sequence[Mapping[str, Any]], missing: Mapping[str, int]) -> str:
    serving = [each["id"] for each in instances if model in each["models"]]
    on = f"it is served by {', '.join(serving)}" if serving else "no live instance serves it"
    if missing:
        more = " and ".join(f"{count} x {accelerator}" for accelerator, count in sorted(missing.items()))
        return f"add {more} (the controller's recommendation; {on}), or loosen the objective"
    return (
        f"add an instance that serves {model} ({on}), or loosen the objective; "
        "`qlm requests --late` lists what was late, `qlm plan show --why` explains what will be"
    )


def missing_instances(metrics: str) -> dict[str, int]:
    """Return the instances that a controller recommends beyond the live ones, by accelerator.

    Args:
        metrics: Metrics in Prometheus' text format; without a controller they have no such series.
    """
    wanted, live = _by_accelerator(metrics, _WANTED), _by_accelerator(metrics, _LIVE)
    more = {accelerator: count - live.get(accelerator, 0) for accelerator, count in wanted.items()}
    return {accelerator: count for accelerator, count in more.items() if count > 0}


_WANTED: Final = "qlm_controller_recommended_instances"
_LIVE: Final = "qlm_controller_live_instances"


def _by_accelerator(metrics: str, name: str) -> dict[str, int]:
    found = {}
    for line in metrics.splitlines():
        if line.startswith(f'{name}{{accelerator="'):
            labels, _, value = line.rpartition(" ")
            found[labels.partition('"')[2].partition('"')[0]] = round(float(value))
    return found
