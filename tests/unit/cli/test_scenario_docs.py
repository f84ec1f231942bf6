"""docs/scenarios.md and the reference of its keys say what a scenario file may have."""

import re
import typing
from enum import StrEnum
from pathlib import Path

import pytest

from qlm.cli.scenario.file import load_scenario
from qlm.cli.scenario.sections import CsvColumn
from qlm.simulator.workload.formats import CSV_COLUMNS
from qlm.simulator.workload.limits import OverContext
from qlm.simulator.workload.stream import Order
from qlm.simulator.workload.trace_format import TraceFormat

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "scenarios.md").read_text("utf-8")
REFERENCE = (DOCS / "reference/scenarios.md").read_text("utf-8")


@pytest.mark.parametrize("path", ["workload[].arrivals.on_off", "slo_classes.NAME", "faults[].slow_instance"])
def test_the_reference_has_the_sections_of_lists_and_mappings(path: str) -> None:
    assert f"\n## `{path}`\n" in REFERENCE


def test_each_key_with_sections_links_to_them() -> None:
    assert "| `drop` or `refuse` | `drop` |" in REFERENCE
    assert "| list of [section](#workload) | required | 1 to 1000 of them |" in REFERENCE


@pytest.mark.parametrize("names", [TraceFormat, Order, OverContext])
def test_every_choice_is_named(names: type[StrEnum]) -> None:
    for name in names:
        assert f"`{name}`" in REFERENCE


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
