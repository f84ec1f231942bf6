"""Bring the parts of helm/qlm up to date that are kept elsewhere. Usage: python scripts/chart.py

A chart cannot read outside its folder, so the dashboard and the alerts are copied into it; and what the
section `config` of the values may hold is what the configuration file may hold. So are values that the chart
puts into that file under names of its own.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from qlm.cli.config.settings import Config

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "helm/qlm"
SCHEMA: Final = CHART / "values.schema.json"

COPIED: Final = ("grafana-dashboard.json", "alerts.yaml")
"""Files of monitoring/."""

OF_THE_CHART: Final = frozenset(
    {
        "grpc",
        "monitor",
        "tracing",
        "data_dir",
        "broker",
        "store",
        "models",
        "instances",
        "ray",
        "profiles",
    }
)
"""Keys of the configuration file that the chart writes itself."""

SHARED: Final = {"http": ("api_keys", "allowed_hosts", "allowed_origins"), "admin": ("allowed_hosts",)}
"""Sections of which it writes a part, with the keys that are left."""

_SAID_ELSEWHERE: Final = frozenset({"title", "description", "default", "format"})


def wanted() -> dict[Path, str]:
    """Return what each kept file is to hold."""
    files = {CHART / "files" / name: ROOT / "monitoring" / name for name in COPIED}
    copies = {copy: source.read_text("utf-8") for copy, source in files.items() if source.is_file()}
    return {**copies, SCHEMA: schema(json.loads(SCHEMA.read_text("utf-8")))}


def schema(values: Mapping[str, Any]) -> str:
    """Return the schema of the values with its section `config` renewed."""
    config = Config.model_json_schema()
    kept = {name: each for name, each in config["properties"].items() if name not in OF_THE_CHART}
    definitions = {
        name: each for name, each in values["definitions"].items() if not name.startswith("config.")
    }
    for name, keys in SHARED.items():
        whole = config["$defs"][kept[name]["$ref"].rpartition("/")[2]]
        kept[name] = _section({key: whole["properties"][key] for key in keys})
    section = _section(_plain(kept))
    for name in _used(section, config["$defs"]):
        definitions[f"config.{name}"] = _plain(config["$defs"][name])
    renewed = {**values["properties"], "config": section, **_same(values["properties"], config["$defs"])}
    return json.dumps({**values, "properties": renewed, "definitions": definitions}, indent=2) + "\n"


def _same(properties: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that the chart has in sections of its own, with the limits of the configuration."""
    given = _plain(definitions["S3Settings"]["properties"])
    bucket = {_camel_case(name): _or_empty(each) for name, each in given.items()}
    bucket["secret"] = properties["filesS3"]["properties"]["secret"]
    ((name, value),) = definitions["InstanceConfig"]["properties"]["environment"]["patternProperties"].items()
    environment = {"type": "object", "propertyNames": {"pattern": name}, "additionalProperties": value}
    entry = properties["fleet"]["items"]
    entry = {**entry, "properties": {**entry["properties"], "environment": environment}}
    return {
        "filesS3": {**properties["filesS3"], "properties": bucket},
        "fleet": {**properties["fleet"], "items": entry},
    }


def _or_empty(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    """Let what may be null be empty, too: the chart leaves out both."""
    if {"type": "null"} not in rule.get("anyOf", ()):
        return rule
    return {**rule, "anyOf": [*rule["anyOf"], {"const": ""}]}


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return "".join((first, *(each.capitalize() for each in others)))


def _section(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _plain(part: Any) -> Any:
    """Leave out what only documents, and point into `definitions`."""
    if isinstance(part, list):
        return [_plain(each) for each in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return {"$ref": part["$ref"].replace("#/$defs/", "#/definitions/config.")}
    kept = {key: each for key, each in part.items() if key not in _SAID_ELSEWHERE or isinstance(each, dict)}
    return {key: _plain(each) for key, each in kept.items()}


def _used(section: Any, definitions: Mapping[str, Any]) -> list[str]:
    """Name the definitions that a part refers to, of themselves and through others."""
    found: dict[str, None] = {}
    waiting = [json.dumps(section)]
    while waiting:
        text = waiting.pop()
        for name in definitions:
            if f'.{name}"' in text and name not in found:
                found[name] = None
                waiting.append(json.dumps(_plain(definitions[name])))
    return sorted(found)


def main() -> None:
    """Write what has changed."""
    for path, text in wanted().items():
        path.parent.mkdir(exist_ok=True)
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
