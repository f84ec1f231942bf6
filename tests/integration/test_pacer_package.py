"""The npm package of the token pacer in Node.js and in a browser, on the vectors of the Python pacer."""

import json
import subprocess

import pytest

from support import pacer_package
from support.needs import need
from support.pacing import cases

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    need(pacer_package.missing())
    pacer_package.build()


@pytest.mark.timeout(300)  # 10 000 streams, four seconds on an idle core
def test_in_node() -> None:
    tests = sorted((pacer_package.PACKAGE / "test").glob("*.test.mjs"))
    argv = [str(pacer_package.NODE), "--test", "--test-reporter=tap", *map(str, tests)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "# fail 0" in done.stdout


@pytest.mark.parametrize("flags", [(), ("--force-prefers-reduced-motion",)])
def test_in_chromium(flags: tuple[str, ...]) -> None:
    need(pacer_package.missing_browser())
    result = pacer_package.in_browser(*flags)
    assert result["failed"] == []
    assert result["reduced"] is bool(flags)
    assert result["passed"] > sum(len(cases(name)) for name in ("by_hand", "bursts", "items", "graphemes"))


def test_the_lock_file_names_no_registry() -> None:
    lock = json.loads((pacer_package.PACKAGE / "package-lock.json").read_text("utf-8"))
    assert "http" not in json.dumps(lock)
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert packages
    assert all(entry["dev"] and entry["integrity"] for entry in packages.values())
