"""The version of vLLM that the scheduler is written for."""

from typing import Final

SUPPORTED: Final = "0.32"
"""vLLM's scheduler is no public interface: it changes with each minor version."""


class UnsupportedVllmError(RuntimeError):
    """The scheduler was loaded by a vLLM of another version."""


def check_version(version: str) -> None:
    """Check the version of vLLM, such as `0.32.0` or `0.32.1+cpu`.

    Raises:
        UnsupportedVllmError: It is another one.
    """
    if version.split(".")[:2] != SUPPORTED.split("."):
        raise UnsupportedVllmError(
            f"vLLM {version} cannot run QLM's scheduler, which is written for vLLM {SUPPORTED}.x only: "
            f"install vLLM {SUPPORTED}, or start it without --scheduler-cls"
        )
