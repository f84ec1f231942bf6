"""The containers of a compose file as processes of this machine, on loopback."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples/compose"
_VARIABLE = re.compile(r"\$\{(\w+)(?::\?[^}]*)?\}")


def compose(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the file with its variables replaced, as `docker compose config` does.

    Raises:
        KeyError: It has another variable.
    """
    text = (FOLDER / "compose.yaml").read_text("utf-8")
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    made: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(lambda found: variables[found[1]], code))
    return made


@dataclass(frozen=True, slots=True)
class Container:
    """A service that runs `qlm`.

    Attributes:
        arguments: Those of `qlm`, but for the configuration file.
        environment: Its variables.
        config: What the configuration file says, with free ports on loopback.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    config: Mapping[str, Any]

    def port(self, section: str) -> int:
        """Return a port on which it listens."""
        port: int = self.config[section]["port"]
        return port


def containers(made: Mapping[str, Any], folder: Path) -> list[Container]:
    """Return the services that run `qlm`, each with a configuration and a data folder of its own."""
    found = []
    for name, service in made["services"].items():
        if service["image"] != "qlm-emulated":
            continue
        *arguments, option, path = service["command"]
        mounted = dict(each.split(":")[:2][::-1] for each in service["volumes"])
        assert option == "--config"
        config = yaml.safe_load((FOLDER / mounted[path]).read_text("utf-8"))
        for section in ("http", "grpc", "admin", "monitor"):
            assert config[section]["host"] == "0.0.0.0"
            config[section] = {"host": "127.0.0.1", "port": free_port()}
        config["data_dir"] = str(folder / name)
        found.append(Container(name, tuple(arguments), service["environment"], config))
    return found
