"""The profiles that come with QLM, one file per (model, accelerator, GPUs)."""

from collections.abc import Sequence
from importlib.resources import files

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profile import Profile, parse_profile_text


def builtin_profiles() -> tuple[Profile, ...]:
    """Read all shipped profiles, in the order of their file names."""
    folder = files("qlm.rct_estimator") / "profiles"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    return tuple(parse_profile_text((folder / name).read_text("utf-8"), name) for name in names)


def find_profile(profiles: Sequence[Profile], model: str, accelerator: str, gpus: int = 1) -> Profile:
    """Return the profile of a (model, accelerator, GPUs).

    Raises:
        InvalidValueError: There is none; the message lists what there is.
    """
    for profile in profiles:
        if (profile.model, profile.accelerator, profile.gpus) == (model, accelerator, gpus):
            return profile
    known = ", ".join(f"{p.model} on {p.gpus} x {p.accelerator}" for p in profiles)
    raise InvalidValueError("profile", f"{model} on {gpus} x {accelerator}", f"one of: {known}")
