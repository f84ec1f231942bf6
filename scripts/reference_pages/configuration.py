"""docs/reference/configuration.md, from the models that read the file."""

from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel

from qlm.cli.config.settings import Config
from scripts.reference_pages.fields import HEAD, rows, summary
from scripts.reference_pages.markdown import anchor, page, table
from scripts.reference_pages.sections import sections

_INTRODUCTION: Final = """\
Every key of the file that `--config` names. [configuration.md](../configuration.md) has an example and \
says what the keys do together. Unknown keys are refused, and each error is one line: file, \
key, value, expectation."""


def configuration_page() -> str:
    """Return the page."""
    return page("Configuration reference", _INTRODUCTION, *_parts())


def _parts() -> Iterator[str]:
    headings = dict(_headings())

    def link(model: type[BaseModel]) -> str:
        return f"[{model_word(model)}](#{anchor(headings[model])})"

    for model, heading in headings.items():
        yield f"## {heading}"
        yield summary(model)
        yield table(HEAD, rows(model, link))


def model_word(model: type[BaseModel]) -> str:
    """Name what a section describes."""
    return {"SloConfig": "objective", "ModelConfig": "models", "InstanceConfig": "instances"}.get(
        model.__name__, "section"
    )


def _headings() -> Iterator[tuple[type[BaseModel], str]]:
    paths: dict[type[BaseModel], list[str]] = {Config: []}
    for path, model in sections(Config):
        paths.setdefault(model, []).append(f"`{path}`")
    for model, names in paths.items():
        yield model, ", ".join(names) or "The file"
