"""Errors that name the optional package of the solvers: `qlm-serving[planner]`."""

from collections.abc import Iterator
from contextlib import contextmanager

from qlm.domain.errors import QlmError


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
        raise QlmError(f"{what} needs {error.name}: pip install 'qlm-serving[planner]'") from error
