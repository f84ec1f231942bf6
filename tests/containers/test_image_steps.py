"""Install steps of container files in plain folders: what each image gets, and what runs once for all."""

from pathlib import Path

import pytest

from scripts import image_steps

WHEEL = (
    "RUN : -m venv /opt/build && echo made >>{made} && mkdir -p /opt/dist && echo {wheel} >/opt/dist/wheel"
)
IMAGE = (
    "RUN : -m venv /opt/qlm && mkdir -p /opt/qlm/bin && echo '#!/bin/sh' >/opt/qlm/bin/qlm"
    " && echo echo of {name} $(cat /opt/dist/wheel) >>/opt/qlm/bin/qlm && chmod +x /opt/qlm/bin/qlm"
)
START = 'ENTRYPOINT ["/opt/qlm/bin/qlm"]\nCMD ["{name}"]'


def container_file(folder: Path, name: str, *, wheel: str) -> str:
    lines = [
        WHEEL.format(made=folder / "made", wheel=wheel),
        IMAGE.format(name=name),
        START.format(name=name),
    ]
    file = folder / f"{name}.Dockerfile"
    file.write_text("\n".join(lines))
    return str(file)


@pytest.mark.parametrize(("second", "made"), [("A", 1), ("B", 2)])
def test_equal_steps_make_the_wheel_once_and_every_image_has_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], second: str, made: int
) -> None:
    files = [container_file(tmp_path, "one", wheel="A"), container_file(tmp_path, "two", wheel=second)]
    assert image_steps.main(str(tmp_path / "built"), *files) == 0
    assert (tmp_path / "made").read_text().split() == ["made"] * made
    assert capfd.readouterr().out.splitlines() == [
        "one.Dockerfile: of one A",
        f"two.Dockerfile: of two {second}",
    ]


def test_a_step_that_fails_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = Path(container_file(tmp_path, "one", wheel="A"))
    file.write_text(file.read_text().replace("mkdir -p /opt/dist", "false"))
    assert image_steps.main(str(tmp_path / "built"), str(file)) == 1
    assert "an install step of one.Dockerfile ended with code 1" in capfd.readouterr().err
