"""What the pages show behind `qlm roofline` is what it prints."""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from qlm.cli.main import main
from support.model_configs import CONFIGS

PAGE = Path(__file__).resolve().parents[3] / "docs/profiles.md"
FOLDER = "/srv/models/qwen3-30b-a3b"


def test_a_roofline_is_printed_as_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((line, printed),) = re.findall(
        r"^\$ qlm (roofline .*)\n((?:.+\n)*?)```", PAGE.read_text("utf-8"), re.MULTILINE
    )
    weights = tmp_path / Path(FOLDER).name
    weights.mkdir()
    (weights / "config.json").write_text(json.dumps(CONFIGS[weights.name]), "utf-8")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, shlex.split(line.replace(FOLDER, str(weights))))
    assert done.exit_code == 0, done.output
    assert done.output == printed
