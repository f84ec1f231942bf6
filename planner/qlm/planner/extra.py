"""The solvers' packages, which only those who solve have installed: `qlm-serving[planner]`."""

from collections.abc import Iterator
from contextlib import contextmanager

from qlm.domain.errors import QlmError


@contextmanager
def needs_solvers(what: str) -> Iterator[None]:
    """Import, and use, what needs the solvers' packages.

    Args:
        what: Who needs them, as the error is to say.

    Raises:
        QlmError: One of them is not installed; it is named.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise QlmError(f"{what} needs {error.name}: pip install 'qlm-serving[planner]'") from error
