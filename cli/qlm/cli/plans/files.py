"""Reads and writes files of planning problems and plans; each problem is one clear error."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qlm.cli.config.errors import ConfigError
from qlm.cli.scenario.output import make_folder, write_whole
from qlm.domain.errors import InvalidValueError, QlmError
from qlm.domain.shown import DIGITS_MAX
from qlm.planner.limits import FILE_BYTES_MAX
from qlm.planner.plan_json import plan_from_plain, plan_to_plain
from qlm.planner.problem import Plan, Problem
from qlm.planner.problem_json import problem_from_plain


def read_problem(path: Path) -> Problem:
    """Read a problem.

    Raises:
        ConfigError: It cannot be read, or is not one; the message names file, key or line, and what was
            expected.
    """
    try:
        return problem_from_plain(_read(path))
    except InvalidValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_plan(path: Path, problem: Problem) -> Plan:
    """Read a plan of a problem.

    Raises:
        ConfigError: It cannot be read, is not one, or not of this problem; the message names file, key or
            line, and what was expected.
    """
    try:
        return plan_from_plain(_read(path), problem)
    except InvalidValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def plan_text(plan: Plan) -> str:
    """Encode a plan as JSON."""
    return json.dumps(plan_to_plain(plan), indent=2, allow_nan=False)


def check_out(path: Path) -> None:
    """Make the folder of a plan's file if it is missing, and check that the file can be written there.

    Raises:
        QlmError: There is a folder of this name, or a file of the name of its folder.
        OSError: It cannot be written.
    """
    if path.is_dir():
        raise QlmError(f"--out is {str(path)!r}, which is a folder; expected a file")
    make_folder(path.parent, (path.name,))


def write_plan(path: Path, plan: Plan) -> None:
    """Write a plan to a file atomically; its folder is made if it is missing.

    Raises:
        QlmError: There is a folder of this name, or a file of the name of its folder.
        OSError: It cannot be written.
    """
    check_out(path)
    write_whole(path, f"{plan_text(plan)}\n".encode())


def _read(path: Path) -> Any:
    try:
        size = path.stat().st_size
        if size > FILE_BYTES_MAX:
            raise InvalidValueError("size", size, f"at most {FILE_BYTES_MAX} bytes")
        with path.open("rb") as file:
            # Devices and pipes report a size of 0, and may be endless.
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or type(error).__name__}") from error
    if len(data) > FILE_BYTES_MAX:
        raise InvalidValueError("size", f"more than {FILE_BYTES_MAX}", f"at most {FILE_BYTES_MAX} bytes")
    return _decoded(path, data)


def _decoded(path: Path, data: bytes) -> Any:
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_object, parse_int=_integer, parse_constant=_constant
        )
    except InvalidValueError:
        raise
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}:{error.colno}: {error.msg}; expected JSON") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is no UTF-8; expected JSON in UTF-8") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply; expected a problem or a plan") from error


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidValueError("a key", key, "each key of an object once")
            seen.add(key)
    return made


def _integer(digits: str) -> int:
    # Python parses no longer ones. The field refuses the value by name, so its first digits are enough.
    beyond: int = 10 ** max(0, len(digits) - DIGITS_MAX)
    return int(digits[:DIGITS_MAX]) * beyond


def _constant(name: str) -> Any:
    raise InvalidValueError("a number", name, "a finite one")
