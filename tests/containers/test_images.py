"""Container files: linted, pinned, without root; each program runs with what its image has alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import image_steps
from support.images import ROOT, container_files, environment_of, locked

FILES = container_files()
QLM = Path(sys.executable).with_name("qlm")
PROGRAMS = [
    ("gateway", ["gateway"]),
    ("controller", ["controller"]),
    ("agent", ["agents"]),
    ("agent", ["agent"]),
    ("emulated", ["agents"]),
    ("emulated", ["emulate"]),
]
SERVED = [
    ("gateway", "qlm.cli.runtime.listeners"),
    *((image, "qlm.cli.runtime.serving") for image in ("gateway", "controller", "agent", "emulated")),
    *((image, "qlm.cli.runtime.ray") for image in ("agent", "emulated")),
]


def name_of(file: Path) -> str:
    return file.stem


def test_there_is_one_for_each_part() -> None:
    assert [name_of(file) for file in FILES] == ["agent", "controller", "emulated", "gateway"]


def test_the_linter_has_no_objection() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, *FILES], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_it_ends_as_a_user_without_rights_that_the_chart_knows(file: Path) -> None:
    found = [rest for name, rest in image_steps.instructions(file.read_text("utf-8")) if name == "USER"]
    assert found == ["10001:10001"]
    assert "runAsUser: 10001" in (ROOT / "helm/qlm/templates/_pod.tpl").read_text("utf-8")


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_bases_are_pinned(file: Path) -> None:
    bases = [
        rest.split()[0] for name, rest in image_steps.instructions(file.read_text("utf-8")) if name == "FROM"
    ]
    supported = re.search(r"^version=(\S+)", (ROOT / "scripts/install_vllm_gpu.sh").read_text(), re.MULTILINE)
    assert supported is not None
    own = f"vllm/vllm-openai:v{supported[1]}" if name_of(file) == "agent" else "python:3.11-slim-bookworm"
    assert bases == ["python:3.11-slim-bookworm", own]


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_what_is_installed_is_hashed_and_in_the_versions_that_are_tested(file: Path) -> None:
    wheel, image = image_steps.install_steps(file.read_text("utf-8"))
    assert "--require-hashes" in wheel and "/src/requirements/build.lock" in wheel
    assert "--require-hashes" in image and f"/src/requirements/{name_of(file)}.lock" in image
    tested = locked("serve")
    differing = {
        each: version for each, version in locked(name_of(file)).items() if tested.get(each) != version
    }
    assert differing == {}


@pytest.mark.parametrize(
    ("lock", "absent"),
    [("gateway", "ray"), ("gateway", "numba"), ("agent", "tokenizers"), ("agent", "numba")],
)
def test_an_image_has_only_its_extra(lock: str, absent: str) -> None:
    assert absent in locked("serve")
    assert absent not in locked(lock)


@pytest.mark.parametrize(("image", "words"), PROGRAMS, ids=lambda each: str(each))
def test_the_program_of_an_image_needs_nothing_else(image: str, words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [QLM, *words, "--help"],
        env=environment_of(image, tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sage" in done.stdout


@pytest.mark.parametrize(("image", "module"), SERVED)
def test_what_a_program_imports_as_it_starts_to_serve_is_in_its_image(
    image: str, module: str, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", f"import {module}"]
    environment = environment_of(image, tmp_path)
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_cannot_run_where_it_is_installed_says_what_it_needs(tmp_path: Path) -> None:
    done = subprocess.run(
        [QLM, "emulate", "--help"],
        env=environment_of("agent", tmp_path, but=["uvicorn"]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "qlm: emulate needs uvicorn, which is not installed here\n"


def test_steps_are_run_as_they_stand_but_for_paths() -> None:
    text = (
        "FROM base AS wheel\nRUN --mount=type=bind,target=/src \\\n    python3 -m venv /opt/qlm \\\n"
        "    && pip -r /src/x.lock\n# no step\nRUN useradd q\n"
        'ENTRYPOINT ["/opt/qlm/bin/qlm"]\nCMD ["gateway"]\n'
    )
    (step,) = image_steps.install_steps(text)
    assert step == "python3 -m venv /opt/qlm && pip -r /src/x.lock"
    there = Path("/there")
    assert image_steps.moved(step, there) == f"python3 -m venv /there/opt/qlm && pip -r {ROOT}/x.lock"
    assert image_steps.entry_point(text, there) == ["/there/opt/qlm/bin/qlm", "gateway"]


def test_a_step_that_fails_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broken.Dockerfile"
    step = "RUN true -m venv && echo no such wheel >&2 && exit 3\n"
    file.write_text(f"{step}{step}", "utf-8")
    assert image_steps.main(str(tmp_path / "images"), str(file)) == 1
    said = capfd.readouterr().err
    assert "an install step of broken.Dockerfile ended with code 3" in said
    assert "no such wheel" in said
