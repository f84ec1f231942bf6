"""ARCHITECTURE.md against the code: its packages, layers, ports, files and defaults."""

import inspect
import re
import tomllib
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import qlm.domain.ports
from qlm.cli.config.settings import Config

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
CONTRACTS: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"][
    "importlinter"
]["contracts"]


def contract(name: str) -> dict[str, Any]:
    (found,) = (each for each in CONTRACTS if each["name"] == name)
    return found


def section(heading: str) -> str:
    return PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]


def test_the_pure_packages_are_those_of_the_linter() -> None:
    listed = re.findall(
        r"`([\w.]+)`", "".join(re.findall(r"^- .*$", section("Functional core, imperative shell"), re.M))
    )
    pure = contract("decisions know no clock, no chance, no input or output")["source_modules"]
    assert sorted(f"qlm.{each}" for each in listed) == sorted(pure)


def test_the_drawn_layers_are_those_of_the_linter() -> None:
    drawing = re.findall(r"```\n(.*?)```", section("Functional core, imperative shell"), re.S)[0]
    drawn = [sorted(row.split()) for row in drawing.splitlines() if re.search(r"[a-z]", row)]
    layers = [
        sorted(row.replace("qlm.", "").split(" | "))
        for row in contract("dependencies point inwards")["layers"]
    ]
    assert drawn == layers


def test_the_ports_are_those_of_the_code() -> None:
    named = set(re.findall(r"`([A-Z]\w+)`", section("Ports")))
    defined = {
        name
        for info in iter_modules(qlm.domain.ports.__path__)
        for name, each in vars(import_module(f"qlm.domain.ports.{info.name}")).items()
        if inspect.isclass(each)
        and getattr(each, "_is_protocol", False)
        and each.__module__.endswith(info.name)
    }
    assert named <= defined


def test_the_named_modules_and_files_exist() -> None:
    for name in re.findall(r"`((?:agents|broker|cli|controller|gateway|simulator|store)\.[\w.]+)`", PAGE):
        import_module(f"qlm.{name}")
    for path in re.findall(r"`([a-z_]+/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists(), f"there is no {path}"


def test_the_default_policy_is_the_configurations() -> None:
    (named,) = re.findall(r"the default policy is `(\w+)`", PAGE)
    assert named == Config.model_fields["planner"].default
