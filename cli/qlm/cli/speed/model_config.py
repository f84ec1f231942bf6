"""Reading of a model's `config.json` from the disk."""

import functools
from pathlib import Path
from typing import Final

from qlm.cli.config.fleet import ModelConfig
from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.roofline.architecture import Architecture
from qlm.rct_estimator.roofline.config_json import parse_config_text

FILE: Final = "config.json"


def config_file(model: ModelConfig) -> Path | None:
    """Return the `config.json` of a model: the one that is named, else that beside its weights, if any."""
    if model.config is not None:
        return model.config / FILE if model.config.is_dir() else model.config
    if model.path is not None and (model.path / FILE).is_file():
        return model.path / FILE
    return None


def read_architecture(file: Path) -> Architecture:
    """Read a model's configuration.

    Args:
        file: A `config.json`, or its folder.

    Raises:
        InvalidValueError: It cannot be read, or a key is missing or wrong; names file and key.
    """
    file = file / FILE if file.is_dir() else file
    try:
        changed = file.stat().st_mtime_ns
    except OSError as error:
        raise InvalidValueError(str(file), error.strerror, "a model's config.json or its folder") from error
    return _read(file, changed)


@functools.lru_cache(maxsize=256)
def _read(file: Path, changed: int) -> Architecture:
    """Read it once as long as it does not change: a fleet asks for each of its instances."""
    try:
        return parse_config_text(file.read_text("utf-8"), str(file))
    except OSError as error:
        raise InvalidValueError(str(file), error.strerror, "a file that can be read") from error
    except UnicodeDecodeError as error:
        raise InvalidValueError(str(file), error.reason, "text in UTF-8") from error
