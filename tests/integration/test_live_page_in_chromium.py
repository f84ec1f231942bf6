"""A person at the live page, by keyboard alone, in a real browser; and a checker of accessibility beside."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from qlm.gateway.core.access import AccessRules
from support.chromium import Chromium, chromium, missing_browser
from support.live import living, running, some_requests
from support.needs import need
from support.pacer_package import NODE
from support.pacer_package import missing as missing_node

pytestmark = pytest.mark.servers

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "tests/page/node_modules/axe-core/axe.min.js"
LOCK = ROOT / "tests/page/package-lock.json"
TOKEN = "of-the-operators-of-this-test"

FOCUSED = "document.activeElement.id"
PANEL = "document.getElementById('panel-body').innerText"
OPTION = "document.querySelector('[role=option]')?.textContent ?? ''"


@pytest.fixture
def browser() -> Iterator[Chromium]:
    need(missing_browser() or missing_node())
    subprocess.run([ROOT / "scripts/install_axe.sh"], check=True, timeout=110)
    with chromium() as page:
        yield page


def accessible(page: Chromium) -> bool:
    """Return whether axe finds nothing against its rules, WCAG 2.2 AA among them; print what it finds."""
    if not page.run("'axe' in window"):
        page.run(AXE.read_text("utf-8") + "; 'loaded'")
    found = page.run(
        "axe.run(document, {resultTypes: ['violations']}).then((done) => done.violations.map("
        "(each) => `${each.id}: ${each.nodes.map((node) => node.html.slice(0, 120)).join(' ')}`))"
    )
    print(*found, sep="\n")
    return not found


def tab_to(page: Chromium, id: str) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(30):
        if page.run(FOCUSED) == id:
            return
        page.press("Tab")
    raise AssertionError(f"Tab does not reach {id}")


def gives_the_token(page: Chromium, url: str) -> None:
    page.open(f"{url}/ui")
    page.until("!document.getElementById('token-form').hidden")
    assert page.until(FOCUSED) == "token"
    assert "the admin token is missing" in page.run("document.body.innerText")
    assert accessible(page)
    page.write(TOKEN)
    page.press("Enter")
    page.until("document.getElementById('status').dataset.state === 'live'")
    page.until("document.getElementById('summary').innerText.includes('2 groups on 1 instance')")


def finds_why_a_request_waits(page: Chromium) -> None:
    page.press("/")
    assert page.run(FOCUSED) == "name"
    page.write("cmpl-n1")
    page.press("Enter")
    text = page.until(f"{PANEL}.includes('it would run earlier if') && {PANEL}")
    assert page.run(FOCUSED) == "panel"
    assert "it waits: number 2 of 3 in qlm.class.n." in text
    assert "the group before its own ended or went elsewhere: 6 requests" in text
    assert "accepted" in text  # its history
    page.press("Escape")
    assert page.run(FOCUSED) == "name"


def explains_a_group(page: Chromium) -> None:
    tab_to(page, "chart")
    first = page.until(OPTION)
    assert ": 6 requests of m, deadline-" in first and "last answer in" in first
    page.press("ArrowRight")
    second = page.run(OPTION)
    assert ": 3 requests of n, " in second
    page.press("Home")
    assert page.run(OPTION).split(":")[0] == first.split(":")[0]
    page.press("End")
    page.press("Enter")
    text = page.until(f"{PANEL}.includes('waits for') && {PANEL}")
    assert f"{second.split(' on ')[0]}: n, 3 requests, deadline in " in text
    assert accessible(page)
    page.press("Escape")
    assert page.run(FOCUSED) == "chart"


def lists_requests(page: Chromium) -> None:
    tab_to(page, "which")
    page.press("Tab")
    page.press("Enter")
    page.until("document.querySelectorAll('#requests tbody tr').length === 9")
    page.press("Tab", times=2)
    page.press("Enter")
    page.until(f"{PANEL}.includes('it waits: number')")


def sees_dark_colours(page: Chromium) -> None:
    light = page.run("getComputedStyle(document.body).backgroundColor")
    page.media(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    page.until(f"getComputedStyle(document.body).backgroundColor !== '{light}'")
    assert accessible(page)


def sees_that_the_gateway_is_away(page: Chromium) -> None:
    banner = "document.getElementById('banners').innerText"
    assert "What is shown is" in page.until(f"{banner}.includes('Gateway away') && {banner}")
    assert page.run("document.querySelectorAll('#instances tbody tr').length") == 1
    assert accessible(page)


async def test_a_person_finds_by_keyboard_why_a_request_waits(browser: Chromium, tmp_path: Path) -> None:
    def with_the_gateway(url: str) -> None:
        gives_the_token(browser, url)
        finds_why_a_request_waits(browser)
        explains_a_group(browser)
        lists_requests(browser)
        sees_dark_colours(browser)

    async with living(tmp_path, AccessRules(token=TOKEN)) as live:
        await running(live, 10)
        await live.plant.accept(*some_requests(3, model="n", priority=1))
        try:
            await asyncio.to_thread(with_the_gateway, live.url)
        finally:
            live.gateway.hub.stopping = True
        # The refusal of the first look, before there was a token.
        assert [each for each in browser.complaints() if "401" not in each] == []
    await asyncio.to_thread(sees_that_the_gateway_is_away, browser)


def test_the_pure_parts_in_node() -> None:
    need(missing_node())
    tests = sorted((ROOT / "tests/page").glob("*.test.mjs"))
    argv = [str(NODE), "--test", "--test-reporter=tap", *map(str, tests)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout[-6000:]
    assert tests and "# fail 0" in done.stdout


def test_the_lock_file_names_no_registry() -> None:
    lock = json.loads(LOCK.read_text("utf-8"))
    assert "http" not in json.dumps(lock)
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert packages and all(entry["dev"] and entry["integrity"] for entry in packages.values())
