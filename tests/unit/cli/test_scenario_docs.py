"""docs/scenarios.md names every key of a scenario file, with its default, and no other."""

import re
import types
import typing
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from qlm.cli.scenario.file import load_scenario
from qlm.cli.scenario.sections import CsvColumn
from qlm.cli.scenario.yaml import ScenarioFile
from qlm.simulator.workload.formats import CSV_COLUMNS
from qlm.simulator.workload.limits import OverContext
from qlm.simulator.workload.reading import TraceFormat
from qlm.simulator.workload.stream import Order

PAGE = (Path(__file__).resolve().parents[3] / "docs/scenarios.md").read_text()


def sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield each section below one, with its path in a file."""
    yield path, model
    for name, field in model.model_fields.items():
        for inner, step in inner_sections(field.annotation):
            yield from sections(inner, f"{path}.{name}{step}".removeprefix("."))


def inner_sections(annotation: Any, step: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, step
    elif origin is typing.Annotated:
        yield from inner_sections(arguments[0], step)
    elif origin in (typing.Union, types.UnionType):
        for each in arguments:
            yield from inner_sections(each, step)
    elif origin is tuple:
        yield from inner_sections(arguments[0], f"{step}[]")
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        yield from inner_sections(arguments[1], f"{step}.NAME")


def default_text(field: FieldInfo) -> str:
    """Write a default as the page does."""
    if field.is_required():
        return "required"
    default = field.default
    if default is None or default in ((), {}):
        return "none"
    if isinstance(default, BaseModel):
        given = default.model_dump(exclude_defaults=True)
        return f"`{yaml.safe_dump(given, default_flow_style=True).strip()}`" if given else "none"
    if isinstance(default, tuple):
        return f"`{yaml.safe_dump(list(default), default_flow_style=True).strip()}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def documented(path: str) -> dict[str, str]:
    """Return the keys of a section in the page, with their defaults."""
    heading = f"### `{path}`" if path else "### The file"
    _, found, rest = PAGE.partition(f"\n{heading}\n")
    assert found, f"docs/scenarios.md has no heading {heading!r}"
    table = rest.partition("\n#")[0]
    rows = re.findall(r"^\| `(\w+)` \| .*? \| ([^|]*?) \|", table, re.MULTILINE)
    return dict(rows)


def first_paths() -> dict[str, type[BaseModel]]:
    """Return each kind of section at the first path where it stands; the page describes it there."""
    found: dict[type[BaseModel], str] = {}
    for path, model in sections(ScenarioFile, ""):
        found.setdefault(model, path)
    return {path: model for model, path in found.items()}


SECTIONS = first_paths()


@pytest.mark.parametrize("path", SECTIONS)
def test_every_key_is_in_the_page_with_its_default(path: str) -> None:
    expected = {name: default_text(field) for name, field in SECTIONS[path].model_fields.items()}
    if not path:
        expected |= {"base": "none", "name": "name of the file"}
    assert documented(path) == expected


def test_the_page_has_no_other_sections() -> None:
    reference = PAGE.partition("\n## Keys\n")[2].partition("\n## ")[0]
    headings = set(re.findall(r"^### `(.*)`$", reference, re.MULTILINE))
    assert headings == {path for path in SECTIONS if path}


@pytest.mark.parametrize("names", [TraceFormat, Order, OverContext])
def test_every_choice_is_named(names: type[StrEnum]) -> None:
    for name in names:
        assert f"`{name}`" in PAGE


def test_columns_of_a_csv_are_named() -> None:
    assert set(typing.get_args(CsvColumn)) == set(CSV_COLUMNS)
    for name in CSV_COLUMNS:
        assert f"`{name}`" in PAGE


def test_the_example_in_the_page_works(tmp_path: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "example.yaml"
    file.write_text(examples[0])
    (tmp_path / "log.csv").write_text("arrival_s,model,tenant,input_tokens,output_tokens\n0,small,ann,5,6\n")
    assert load_scenario(file).name == "example"
