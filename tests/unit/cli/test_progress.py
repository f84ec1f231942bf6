"""Progress of long commands: it shows the present step, and nothing where nobody looks."""

import io

from rich.console import Console

from qlm.cli.figures.catalogue import FIGURES
from qlm.cli.figures.running import simulations
from qlm.cli.progress import steps_bar


def shown(*, terminal: bool) -> str:
    screen = io.StringIO()
    with steps_bar(4, Console(file=screen, force_terminal=terminal, width=100)) as report:
        report(0, "1 of 4: quiet [a]")
        report(3, "4 of 4: busy")
    return screen.getvalue()


def test_a_terminal_shows_share_time_left_and_step() -> None:
    text = shown(terminal=True)
    assert "75%" in text
    assert "4 of 4: busy" in text
    assert ":" in text.split("75%")[1]  # the time that is left


def test_a_pipe_gets_nothing() -> None:
    assert shown(terminal=False).strip() == ""


def test_every_figure_reports_as_many_simulations_as_it_says() -> None:
    for figure in FIGURES.values():
        assert simulations(figure, (1, 2)) == 2 * simulations(figure, (1,)) > 2
