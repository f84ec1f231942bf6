"""Reads YAML files of settings; each problem is one clear error."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from qlm.cli.config.errors import ConfigError
from qlm.domain.shown import shown, without_passwords

_MERGE: Final = "tag:yaml.org,2002:merge"


def read_mapping(path: Path, keys: str) -> dict[str, Any]:
    """Read a YAML file; `keys` names some expected keys in the ConfigError for another content."""
    try:
        raw = yaml.load(path.read_text("utf-8"), UniqueKeyLoader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    except yaml.YAMLError as error:
        problem = without_passwords(" ".join(str(error).split()))  # with the line
        raise ConfigError(f"{path}: is not YAML: {problem}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: is nested too deeply") from error
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        what = "a list" if isinstance(raw, list) else f"only {shown(raw)}"
        raise ConfigError(f"{path}: holds {what}; expected keys such as {keys}")
    return dict(raw)


class UniqueKeyLoader(yaml.SafeLoader):
    """YAML loader that refuses duplicate keys, of which YAML itself silently keeps the last."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._flat: set[yaml.Node] = set()

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build a value; an invalid number or date becomes an error with its line."""
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            text = shown(node.value)
            problem = f"{text} is no number or date that can be read"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Insert the mappings of merge keys (`<<`) into one of distinct keys."""
        if node not in self._flat:
            # Afterwards it also has the keys of the others, of which it may replace some.
            self._flat.add(node)
            self._check_keys(node)
        super().flatten_mapping(node)

    def _check_keys(self, node: yaml.MappingNode) -> None:
        named = (key for key, _ in node.value if key.tag != _MERGE)
        keys = [self.construct_object(key, deep=True) for key in named]
        for key in keys:
            if keys.count(key) > 1:
                problem = f"the key {shown(key)} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
