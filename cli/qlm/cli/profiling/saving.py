"""The file of a measured profile: sure to be writable before minutes of measurement, and never lost after."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from qlm.cli.scenario.output import make_folder, part_of
from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.points import FitPoint


def reserve(out: Path, *, force: bool) -> None:
    """Make the folder of a file, and check that the file can be written there.

    Raises:
        InvalidValueError: There is such a file, and `force` is not set.
        QlmError: A file has the name of the folder.
        OSError: The folder cannot be made, or nothing can be written into it.
    """
    if out.exists() and not force:
        raise InvalidValueError("--out", str(out), "a file that does not exist, or --force")
    make_folder(out.parent, (out.name,))


def save(out: Path, text: str) -> None:
    """Write the profile, whole or not at all; if that fails, print it instead.

    Raises:
        OSError: It cannot be written; it was printed.
    """
    part = part_of(out)
    try:
        part.write_text(text, "utf-8")
        part.replace(out)
    except OSError:
        click.echo(text)
        raise


@contextmanager
def kept_points(out: Path, points: Sequence[FitPoint]) -> Iterator[None]:
    """Keep measured points in a file beside the profile if what is made of them fails."""
    try:
        yield
    except Exception:
        file = out.with_name(f"{out.name}.points.json")
        save(file, json.dumps([each._asdict() for each in points], indent=1))
        click.echo(f"qlm: no profile could be made; the measured points are in {file}", err=True)
        raise
