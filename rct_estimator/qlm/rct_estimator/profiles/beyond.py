"""Whether a profile is used beyond what was timed for it."""

from typing import Final

from qlm.rct_estimator.profiles.profile import Profile

_SLACK: Final = 1.1
"""A limit up to this much beyond the points is no extrapolation worth a word."""


def beyond_fit(profile: Profile) -> tuple[str, ...]:
    """Return a line if limits of the engine lie far beyond what was timed or logged, else none.

    A profile that keeps neither says nothing about its range, and gets no line.
    """
    fit = profile.fit or profile.covered
    if fit is None:
        return ()
    known = "timed" if profile.fit else "logged"
    parts = [
        f"{limit} {what} ({known} to {covered:.0f})"
        for what, limit, covered in (
            ("requests in a batch", profile.seqs_max, fit.sequences_max),
            ("tokens in an iteration", profile.batched_tokens_max, fit.tokens_max),
            ("tokens of a text", profile.context_tokens, fit.context_max),
        )
        if limit > _SLACK * covered
    ]
    name = f"{profile.model} on {profile.gpus} x {profile.accelerator}"
    return (f"profile {name} is extrapolated to {', '.join(parts)}",) if parts else ()
