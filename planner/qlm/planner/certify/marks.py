"""Choice of the groups and models to mark: those with which queues of the relaxation are too cheap."""

from typing import Final

import numpy as np

from qlm.planner.arrays import Floats
from qlm.planner.certify.master import Column
from qlm.planner.certify.pricing import UNMARKED
from qlm.planner.certify.tracks import Tracks

CELLS_MAX: Final = 2**24
"""Most states of the dynamic program of one lane type, by time step, model and marks."""

MARKS_MAX: Final = 12
"""Most marks of a lane type."""

NEW_MARKS: Final = 2
"""Most new marks of a lane type at a time."""

USED_MIN: Final = 1e-6
"""Least use of a column that counts."""


def choose_marks(
    tracks: Tracks, columns: list[Column], used: Floats, worth_s: Floats
) -> list[tuple[list[int], list[int]]]:
    """Return the priced groups and the models to mark, by lane type."""
    gains: list[dict[tuple[bool, int], float]] = [{} for _ in tracks.tracks]
    for column, share in zip(columns, used, strict=True):
        if share <= USED_MIN:
            continue
        gain = gains[column.track]
        groups, count = np.unique(column.order, return_counts=True)
        for g in groups[count > 1].tolist():
            gain[False, g] = gain.get((False, g), 0.0) + share * float(worth_s[g])
        for m in column.cheats.tolist():
            gain[True, m] = gain.get((True, m), 0.0) + share * float(np.median(worth_s))
    return [_best(tracks, k, gain) for k, gain in enumerate(gains)]


def _best(tracks: Tracks, k: int, gain: dict[tuple[bool, int], float]) -> tuple[list[int], list[int]]:
    track = tracks.tracks[k]
    states = tracks.charges[k].shape[1] * max(1, len(track.begins) - 1)
    most = min(MARKS_MAX, int(np.log2(max(1.0, CELLS_MAX / states))))
    left = max(0, min(NEW_MARKS, most - track.marks))
    chosen = sorted(gain, key=lambda each: (-gain[each], each))[:left]
    return [at for is_model, at in chosen if not is_model], [at for is_model, at in chosen if is_model]


def contradicts(tracks: Tracks, column: Column) -> bool:
    """Return True if a column repeats a marked group, or loads a marked model too cheaply."""
    track = tracks.tracks[column.track]
    groups, count = np.unique(column.order, return_counts=True)
    repeated = np.searchsorted(track.groups, groups[count > 1])
    return bool(
        (track.mark[repeated] != UNMARKED).any() or (track.model_mark[column.cheats] != UNMARKED).any()
    )
