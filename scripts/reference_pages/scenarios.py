"""docs/reference/scenarios.md, from the models that read a scenario file."""

from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel

from qlm.cli.scenario.yaml import ScenarioFile
from scripts.reference_pages.fields import HEAD, rows, summary
from scripts.reference_pages.markdown import anchor, page, table
from scripts.reference_pages.sections import sections

_INTRODUCTION: Final = """\
Every key of a scenario file. [scenarios.md](../scenarios.md) has an example, the formats of traces, and \
the rules that hold for all keys. Times are in the unit that ends the name of a key. Beside the keys of \
the whole file, `base` names a scenario file that this one changes. Unknown keys are refused."""


def scenarios_page() -> str:
    """Return the page."""
    return page("Scenario reference", _INTRODUCTION, *_parts())


def first_paths() -> dict[type[BaseModel], str]:
    """Return the first path at which each kind of section stands in a file; the page describes it there."""
    paths: dict[type[BaseModel], str] = {ScenarioFile: ""}
    for path, model in sections(ScenarioFile):
        paths.setdefault(model, path)
    return paths


def heading(path: str) -> str:
    """Return the heading of a section of a file."""
    return f"`{path}`" if path else "The file"


def _parts() -> Iterator[str]:
    paths = first_paths()

    def link(model: type[BaseModel]) -> str:
        return f"[section](#{anchor(heading(paths[model]))})"

    for model, path in paths.items():
        yield f"## {heading(path)}"
        yield summary(model)
        yield table(HEAD, rows(model, link))
