"""The file of a measured profile is sure to be writable before, and its measurement is kept after."""

import json
from pathlib import Path

import pytest

from qlm.cli.profiling.saving import kept_points, reserve, save
from qlm.domain.errors import InvalidValueError, QlmError
from qlm.rct_estimator.profiles.points import FitPoint

POINTS = (FitPoint(1, 128, 0, 4, 512, 12.5), FitPoint(0, 0, 0, 8, 512, 9.0))


def test_the_folder_is_made_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "new/folder/x.yaml"
    reserve(out, force=False)
    assert list(out.parent.iterdir()) == []


def test_a_file_that_exists_is_refused_unless_forced(tmp_path: Path) -> None:
    out = tmp_path / "x.yaml"
    out.write_text("precious")
    with pytest.raises(InvalidValueError, match="or --force"):
        reserve(out, force=False)
    reserve(out, force=True)
    assert out.read_text() == "precious"


def test_a_place_where_no_file_can_be_made_is_refused_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(QlmError, match="expected a folder"):
        reserve(tmp_path / "file/x.yaml", force=False)
    with pytest.raises(OSError):
        reserve(tmp_path / ("x" * 300), force=False)


def test_a_profile_that_cannot_be_written_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OSError):
        save(tmp_path / "gone/x.yaml", "model: m\n")
    assert "model: m" in capsys.readouterr().out
    save(tmp_path / "x.yaml", "model: m\n")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("x.yaml", "model: m\n")]


def test_points_are_kept_if_no_profile_can_be_made_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.yaml"
    with kept_points(out, POINTS):
        pass
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidValueError), kept_points(out, POINTS):
        raise InvalidValueError("points", 2, "more of them")
    (file,) = tmp_path.iterdir()
    assert [FitPoint(**each) for each in json.loads(file.read_text())] == list(POINTS)
    assert str(file) in capsys.readouterr().err
