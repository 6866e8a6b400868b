r"""Where windows join, and whether a trajectory jumps there.

At a joint another window begins to give the trajectory. Told are the ratio of the mean square of
tendencies :math:`x_t - x_{t - 1}` across joints to that of other hours, and the same of curvatures
:math:`x_{t + 1} - 2 x_t + x_{t - 1}`, of which two see a joint. Joints may lie at an hour of the
day at which weather changes faster; the *excess* is the members' ratio over that of the truth at
the same hours.

Intervals are those of the jackknife over joints, each with the hours nearest to it, of the
logarithm of the ratio, with Student's :math:`t`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from .trajectories import jackknife

__all__ = ["joints_of", "jumps"]


def joints_of(ds: xr.Dataset) -> list[int] | None:
    r"""The hours of an ensemble at which another window begins to give it, counted from its first,
    as its attribute `joints` has them (JSON); :py:`None` where it has none."""
    if "joints" not in ds.attrs:
        return None
    return [int(hour) for hour in json.loads(str(ds.attrs["joints"]))]


def jumps(change: np.ndarray, joints: Sequence[Sequence[int]], confidence: float) -> dict[str, Any]:
    r"""Jumps of truth and members, as variables of a dataset.

    Arguments:
        change: The mean squares of tendencies and curvatures at each hour, with shape
            :math:`(R, 2, C, 2, L)`: by run, source (truth, members), channel, order and hour.
        joints: The hours of joints of each run.
        confidence: The confidence of intervals.

    Returns:
        `jump` by source, channel and order, `jump_excess` by channel and order, and the ends of
        their intervals, which are NaN with fewer than 3 joints.
    """
    from scipy import stats

    hours = change.shape[-1]
    # of each joint and the hours nearest to it: sums and counts, across and elsewhere
    rows = []
    for run, places in zip(change, joints, strict=True):
        places = [t for t in places if 0 < t < hours]
        nearest = np.argmin(np.abs(np.subtract.outer(np.arange(hours), places or [0])), axis=1)
        for number, joint in enumerate(places):
            row = np.zeros((*run.shape[:-1], 4))
            for order, (there, last) in enumerate((((0,), hours), ((-1, 0), hours - 1))):
                around = (nearest == number) & (np.arange(hours) > 0) & (np.arange(hours) < last)
                across = np.isin(np.arange(hours), [joint + k for k in there]) & around
                for k, chosen in enumerate((across, around & ~across)):
                    row[..., order, k] = run[..., order, chosen].sum(axis=-1)
                    row[..., order, 2 + k] = chosen.sum()
            rows.append(row)
    shape = change.shape[1:4]
    found = {"jump": np.full(shape, np.nan), "jump_excess": np.full(shape[1:], np.nan)}
    ends = {name: [np.full(value.shape, np.nan)] * 2 for name, value in found.items()}
    if rows:

        def log_ratio(m: np.ndarray) -> np.ndarray:
            return np.log(m[..., 0] * m[..., 3] / (m[..., 1] * m[..., 2]))

        def log_excess(m: np.ndarray) -> np.ndarray:
            value = log_ratio(m)
            return value[:, 1] - value[:, 0]

        n = len(rows)
        student = stats.t.ppf(0.5 + confidence / 2, max(n - 1, 1))
        for name, function in (("jump", log_ratio), ("jump_excess", log_excess)):
            with np.errstate(invalid="ignore", divide="ignore"):
                value, error = jackknife(np.stack(rows), function)
            found[name] = np.exp(value)
            if n >= 3:
                ends[name] = [np.exp(value + s * student * error) for s in (-1, 1)]
    dims = {"jump": ("source", "channel", "order"), "jump_excess": ("channel", "order")}
    told = {
        "jump": "mean square of changes across joints of windows over that of others",
        "jump_excess": "members' jump over the truth's at the same hours",
    }
    data: dict[str, Any] = {}
    for name, value in found.items():
        data[name] = (dims[name], value, {"long_name": told[name], "units": "1"})
        for word, end in zip(("low", "high"), ends[name], strict=True):
            data[f"{name}_{word}"] = (dims[name], end, {"units": "1"})
    return data
