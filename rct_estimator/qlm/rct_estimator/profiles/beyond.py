"""Whether a profile is used beyond what was timed for it."""

from typing import Final

from qlm.rct_estimator.profiles.profile import Profile

_SLACK: Final = 1.1
"""A limit up to this much beyond the points is no extrapolation worth a word."""


def beyond_fit(profile: Profile) -> tuple[str, ...]:
    """Return a line for each limit of the engine far beyond the iterations that were timed.

    A profile without points says nothing about its range, and gets no line.
    """
    fit = profile.fit
    if fit is None:
        return ()
    name = f"{profile.model} on {profile.gpus} x {profile.accelerator}"
    return tuple(
        f"profile {name}: used for {what} of up to {limit}, fitted up to {covered:.0f}"
        for what, limit, covered in (
            ("batches", profile.seqs_max, fit.sequences_max),
            ("iterations of tokens", profile.batched_tokens_max, fit.tokens_max),
            ("texts of tokens", profile.context_tokens, fit.context_max),
        )
        if limit > _SLACK * covered
    )
