"""JSON files in the folder of a model."""

import json
from pathlib import Path
from typing import Any

from qlm.domain.errors import InvalidValueError


def read_object(file: Path) -> dict[str, Any]:
    """Return a file's JSON object; empty if there is no such file.

    Raises:
        InvalidValueError: It has something else.
    """
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidValueError("tokenizer", str(file), f"a JSON file ({error})") from error
    if not isinstance(content, dict):
        raise InvalidValueError("tokenizer", str(file), "a JSON object")
    return content
