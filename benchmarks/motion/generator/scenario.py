"""A scenario file drawn from a seed."""

from pathlib import Path

from benchmarks.motion.generator.document import Size, file_text
from benchmarks.motion.generator.draft import Draft, draw_draft
from benchmarks.motion.generator.sizing import sized
from benchmarks.motion.static_placement import Placement


def drawn_file(seed: int) -> str:
    """Return the text of the scenario file of a seed: equal seeds give equal text."""
    draft = draw_draft(seed)
    size, placement = sized(draft)
    return file_text(draft, size, [*_about(draft, size), *_measured(draft, size, placement)])


def scenario_file(folder: Path, seed: int, *, again: bool = False) -> Path:
    """Return the file of a seed in a folder; it is drawn if it is missing, or `again` is set."""
    path = folder / f"drawn-{seed:05d}.yaml"
    if again or not path.exists():
        text = drawn_file(seed)
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(text, "utf-8")
        part.replace(path)
    return path


def _about(draft: Draft, size: Size) -> list[str]:
    """Describe a scenario in a few lines."""
    fleet, disturbances = draft.fleet, draft.disturbances
    kinds = ", ".join(f"{number} x {name}" for name, number in _kinds(draft).items())
    flips = f", popularity changes {len(draft.phases) - 1} times" if len(draft.phases) > 1 else ""
    twins = f", {len(fleet.twins)} of them equal twins" if fleet.twins else ""
    unlike = any(past.factor != 1.0 for past in disturbances.history)
    known = "none" if not disturbances.history else "unlike the run" if unlike else "like the run"
    wrong = len(disturbances.wrong)
    return [
        f"Scenario {draft.seed} of python -m benchmarks.motion.generator: {len(fleet.models)} models{twins},",
        f"on {kinds}; {', '.join(draft.classes)}{flips}.",
        f"History: {known}. Wrong profiles: {wrong}. Instances that leave: {len(disturbances.absences)}.",
        f"About {size.rate_rps * size.lasts_s:.0f} requests in {size.lasts_s:.0f} s at load 1.0.",
    ]


def _kinds(draft: Draft) -> dict[str, int]:
    names = [
        each.kind[0] if each.kind[1] == 1 else f"{each.kind[0]}x{each.kind[1]}"
        for each in draft.fleet.instances
    ]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def _measured(draft: Draft, size: Size, placement: Placement) -> list[str]:
    """Describe the measurement of load 1.0."""
    lines = [
        f"Load 1.0 is {size.rate_rps:.4g} requests per second: what the best static placement answered when",
        "all came at once, up to nine tenths of them. It was",
    ]
    for instance, models in zip(draft.fleet.instances, placement, strict=True):
        lines.append(f"  {instance.id}: {' '.join(models) or 'nothing'}")
    return lines
