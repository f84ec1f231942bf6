"""Cost of a frame of the live page with 1 000 groups, in a real browser.

Times are those of the processor that the page's main thread has used, layout and painting included: what else
the machine does hardly changes them, while frames per second are those that the machine has room for.
`make bench ARGS=live-page` counts these.
"""

import asyncio
import statistics
from collections.abc import Iterator
from typing import Final

import pytest

from benchmarks.live_page import GROUPS_PER_INSTANCE, gateway_of
from support.chromium import Chromium, chromium, missing_browser
from support.needs import need

pytestmark = pytest.mark.servers

GROUPS: Final = 1000
FRAME_S: Final = 1 / 30
WINDOWS: Final = 20
FRAMES: Final = 10
"""Frames of a window: shorter than the second after which a plan is replaced."""

FRAMES_PASS: Final = """new Promise((done) => {
    let left = %d;
    const frame = () => { left -= 1; left < 0 ? done(true) : requestAnimationFrame(frame); };
    requestAnimationFrame(frame);
})"""

LABELS_OF_A_FRAME: Final = """new Promise((done) => {
    const pen = CanvasRenderingContext2D.prototype, draw = pen.fillText, labels = [];
    requestAnimationFrame(() => {  // behind that of the page, so that a whole frame of it comes next
        pen.fillText = function (text, ...at) { labels.push(text); return draw.call(this, text, ...at); };
        requestAnimationFrame(() => { pen.fillText = draw; done(labels); });
    });
})"""


@pytest.fixture
def browser() -> Iterator[Chromium]:
    need(missing_browser())
    with chromium() as page:
        page.size(1600, 1000)
        page.call("Performance.enable", timeDomain="threadTicks")
        yield page


def opened(page: Chromium, port: int) -> None:
    """Open the page, and wait until it shows the plan."""
    page.open(f"http://127.0.0.1:{port}/ui")
    summary = page.until("/[0-9]+ groups on/.exec(document.getElementById('summary').innerText)?.[0]", 60.0)
    assert int(summary.split()[0]) > 0.9 * GROUPS  # some have no request left


def used_s(page: Chromium) -> float:
    """Return the processor time that the main thread of the page has used, seconds."""
    metrics = page.call("Performance.getMetrics")["metrics"]
    return float({each["name"]: each["value"] for each in metrics}["TaskDuration"])


def seconds_of_a_frame(page: Chromium) -> float:
    """Return the median over some windows of the mean cost of a frame."""
    costs = []
    for _ in range(WINDOWS):
        before_s = used_s(page)
        page.run(FRAMES_PASS % FRAMES)
        costs.append((used_s(page) - before_s) / FRAMES)
    print("milliseconds per frame:", *(f"{1000 * each:.1f}" for each in costs))
    return statistics.median(costs)


async def test_a_thousand_groups_leave_room_for_30_frames_per_second(browser: Chromium) -> None:
    async with gateway_of(GROUPS) as port:
        await asyncio.to_thread(opened, browser, port)
        assert 0 < await asyncio.to_thread(seconds_of_a_frame, browser) < FRAME_S


async def test_only_what_is_visible_is_drawn(browser: Chromium) -> None:
    lanes = GROUPS // GROUPS_PER_INSTANCE
    async with gateway_of(GROUPS) as port:
        await asyncio.to_thread(opened, browser, port)
        labels = await asyncio.to_thread(browser.run, LABELS_OF_A_FRAME)
        drawn = [each for each in labels if each.startswith("gpu-")]
        elements = await asyncio.to_thread(browser.run, "document.querySelectorAll('*').length")
    assert "gpu-00" in drawn
    assert len(drawn) == len(set(drawn)) < lanes / 2
    assert elements < 2 * GROUPS  # groups are pixels, not elements; rows are those of instances and classes
