"""Durations of iterations with all coefficients, for Hypothesis."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.profile import COEFFICIENTS, Profile, Source, SourceKind


@st.composite
def iteration_times(draw: st.DrawFn, tokens_max: int = 4096) -> IterationTime:
    """Draw coefficients; the points of `linear` lie below and beyond `tokens_max`."""
    xs = draw(st.lists(st.integers(1, 2 * tokens_max), min_size=1, max_size=4, unique=True).map(sorted))
    ms = draw(st.lists(st.floats(0.001, 30), min_size=len(xs), max_size=len(xs)).map(sorted))
    mixed = draw(st.none() | st.floats(0, 0.3))
    return IterationTime(
        host_ms=draw(st.floats(0, 10)),
        linear_ms=tuple((float(x), y) for x, y in zip(xs, ms, strict=True)),
        kv_ms=draw(st.floats(0, 0.3)),
        kv_mixed_ms=mixed,
        sequence_ms=draw(st.floats(0, 3)),
        square_ms=draw(st.floats(0, 0.01)),
        admission_ms=draw(st.floats(0, 5)),
    )


def timed(profile: Profile, iteration: IterationTime, **changes: Any) -> Profile:
    """Return a profile whose iterations take these times."""
    source = Source(SourceKind.SPECIFIED, "chosen by a test")
    sources = dict(profile.sources) | dict.fromkeys(COEFFICIENTS, source)
    return replace(profile, iteration=iteration, sources=sources, **changes)
