"""What an image of containers/ has installed, by its lock file: programs can be run with that alone."""

import json
import os
import re
from collections.abc import Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ABSENT = "QLM_TEST_ABSENT_MODULES"

_HIDING = f"""
import json, os, sys
for name in json.loads(os.environ.get("{ABSENT}", "[]")):
    sys.modules[name] = None
"""


def container_files() -> list[Path]:
    """The container files."""
    return sorted((ROOT / "containers").glob("*.Dockerfile"))


def locked(name: str) -> dict[str, str]:
    """Versions by package in `requirements/NAME.lock`."""
    text = (ROOT / f"requirements/{name}.lock").read_text("utf-8")
    return dict(re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", text, flags=re.MULTILINE))


def environment_of(image: str, folder: Path, but: Sequence[str] = ()) -> dict[str, str]:
    """Return an environment in which Python finds only what the image has.

    Args:
        image: Name of its lock file.
        folder: Takes a module that Python reads at its start.
        but: Modules of the image that are not found either.
    """
    has = {_plain(name) for name in locked(image)} | {"qlm_serving"}
    absent = [
        module
        for module, distributions in packages_distributions().items()
        if not any(_plain(each) in has for each in distributions) and not module.startswith("_")
    ]
    (folder / "sitecustomize.py").write_text(_HIDING, "utf-8")
    return {**os.environ, ABSENT: json.dumps([*absent, *but]), "PYTHONPATH": str(folder)}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()
