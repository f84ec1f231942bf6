"""docs/reference says what the code says."""

from typing import Annotated, Literal

import click
import pytest
from pydantic import BaseModel, Field

from qlm.cli.config import Config
from qlm.cli.main import main
from scripts.reference import FOLDER, PAGES
from scripts.reference_pages.cli import commands
from scripts.reference_pages.configuration import sections
from scripts.reference_pages.errors import error_rows
from scripts.reference_pages.fields import NoMeaningError, attributes, rows


@pytest.mark.parametrize("name", PAGES)
def test_page_is_current(name: str) -> None:
    assert (FOLDER / name).read_text("utf-8") == PAGES[name](), "run `make reference`"


def test_the_folder_holds_no_other_page() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES)


def test_every_section_and_key_of_the_configuration_is_described() -> None:
    text = (FOLDER / "configuration.md").read_text("utf-8")
    for path, model in sections(Config):
        assert f"`{path}`" in text
        assert all(f"\n| `{key}` |" in text for key in model.model_fields)
    assert all(f"\n| `{key}` |" in text for key in Config.model_fields)


def test_every_option_of_every_command_is_described() -> None:
    text = (FOLDER / "cli.md").read_text("utf-8")
    all_commands = [(name, command) for name, command in commands(main, "qlm") if command is not main]
    for (name, command), part in zip(all_commands, text.split("\n## ")[1:], strict=True):
        assert part.startswith(f"`{name}`\n")
        options = [each for each in command.params if isinstance(each, click.Option)]
        assert all(f"`{word}`" in part for option in options for word in option.opts)


def test_errors_are_found_with_their_messages() -> None:
    found = {(status, code): message for status, code, _, message in error_rows()}
    assert found["404", "`model_not_found`"] == "model is …; expected one of …"
    assert found["429", "`queue_full`"] == "… requests wait"
    assert found["504", "`expired`"] == "the request's deadline passed before it was answered"
    assert ("503", "`no_instance`") in found


class Sample(BaseModel):
    """A thing.

    Attributes:
        low: What it says,
            over two lines.
        names: Names.
        kind: Which one.
        inner: What is inside.
    """

    low: float = Field(1.5, gt=0, le=9)
    names: tuple[Annotated[str, Field(min_length=1, max_length=3)], ...] = Field((), max_length=2)
    kind: Literal["a", "b"] | None = None
    inner: dict[str, int] = Field(default_factory=dict)


def test_fields_in_words() -> None:
    assert rows(Sample, lambda model: model.__name__) == [
        ("`low`", "number", "`1.5`", "above 0, up to 9", "What it says, over two lines."),
        ("`names`", "list of texts", "none", "at most 2 of them, each 1 to 3 characters", "Names."),
        ("`kind`", "`a` or `b`", "none", "", "Which one."),
        ("`inner`", "mapping of texts to whole numbers", "none", "", "What is inside."),
    ]


def test_a_field_without_meaning_is_an_error() -> None:
    class Silent(Sample):
        other: int = 1

    with pytest.raises(NoMeaningError, match=r"Silent\.other"):
        rows(Silent, lambda model: model.__name__)


def test_attributes_of_a_docstring_end_with_their_section() -> None:
    assert attributes("A.\n\n    Attributes:\n        a: One.\n        b: Two\n            lines.\n") == {
        "a": "One.",
        "b": "Two lines.",
    }
