"""Errors that name the optional package of the solvers, and the extra that has it: `planner`."""

from collections.abc import Iterator
from contextlib import contextmanager

from qlm.domain.errors import QlmError, extra_hint


@contextmanager
def needs_solvers(what: str) -> Iterator[None]:
    """Translate a missing package of the solvers into an error that names the extra to install.

    Args:
        what: Subject of the error message.

    Raises:
        QlmError: One of them is not installed; it is named.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise QlmError(f"{what} needs {error.name}: {extra_hint('planner')}") from error
