"""Run the install steps of a container file in plain virtual environments, without building an image.

Usage: python scripts/image_steps.py FOLDER CONTAINERFILE...

Each RUN that installs something is run as it stands, but for four paths: /src is this checkout, /opt/qlm,
/opt/build and /opt/dist lie below FOLDER. Equal steps that make the wheel run once, as in a builder with a
cache. Left out are the base image and steps that only a root file system can take (users, links in
/usr/local). In the end the program that the image starts must tell its usage.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOVED = ("opt/qlm", "opt/build", "opt/dist")


class StepError(Exception):
    """A step failed; the message says which, and holds the end of what it said."""


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Split a container file into instructions and their arguments, with continued lines joined."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\s*\\\n\s*", " ", kept).splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name.upper(), rest.strip()


def install_steps(text: str) -> list[str]:
    """Return the commands of the RUN instructions that install, without their mounts."""
    commands = [re.sub(r"^(--mount=\S+\s+)+", "", rest) for name, rest in instructions(text) if name == "RUN"]
    return [command for command in commands if "-m venv" in command]


def moved(command: str, folder: Path) -> str:
    """Rewrite the paths of an image to those of this machine."""
    for path in MOVED:
        command = command.replace(f"/{path}", f"{folder}/{path}")
    return re.sub(r"(?<![\w.-])/src\b", str(ROOT), command)


def entry_point(text: str, folder: Path) -> list[str]:
    """Return the program that the image starts, and its first word."""
    found = {name: re.findall(r'"([^"]*)"', rest) for name, rest in instructions(text)}
    return [moved(found["ENTRYPOINT"][0], folder), found["CMD"][0]]


def run(command: list[str], what: str) -> str:
    """Run a command in the checkout, and return what it said."""
    # Of most modules nothing more is asked here than to be installed: pip need not compile them.
    env = {**os.environ, "PIP_COMPILE": "0"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise StepError(f"{what} ended with code {done.returncode}: {' '.join(command)}\n{said}")
    return done.stdout


def take(step: str, folder: Path, file: Path) -> None:
    """Run an install step of a container file."""
    run(["bash", "-euo", "pipefail", "-c", moved(step, folder)], f"an install step of {file.name}")


def check(file: Path, folder: Path, wheels: dict[str, Path]) -> None:
    """Install as the file says, and start what it starts.

    Args:
        file: The container file.
        folder: Takes what it installs.
        wheels: The folder where a step has made the wheel, by step; grows by a new one.
    """
    text = file.read_text("utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    steps = install_steps(text)
    if len(steps) != 2:
        raise StepError(f"{file.name} has {len(steps)} install steps; expected the wheel's and the image's")
    wheel, image = steps
    if wheel in wheels:
        shutil.copytree(wheels[wheel] / "opt/dist", folder / "opt/dist")
    else:
        take(wheel, folder, file)
        wheels[wheel] = folder
    take(image, folder, file)
    said = run([*entry_point(text, folder), "--help"], f"the program of {file.name}")
    print(f"{file.name}: {said.splitlines()[0]}")


def main(folder: str, *files: str) -> int:
    """Check each file in a folder of its own; say what failed."""
    wheels: dict[str, Path] = {}
    try:
        for name in files:
            check(Path(name), Path(folder).resolve() / Path(name).stem, wheels)
    except StepError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
