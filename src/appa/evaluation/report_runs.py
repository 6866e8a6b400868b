r"""The runs that a page is of: one, or analyses of several dates one after another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from ..errors import DataError
from .forecasts import issued, open_runs

__all__ = ["named", "opened", "stretches"]


def named(run: str | Path | Sequence[str]) -> str:
    r"""What a run is called."""
    return str(run) if isinstance(run, str | Path) else ", ".join(map(str, run))


def opened(run: xr.Dataset | str | Path | Sequence[str]) -> xr.Dataset:
    r"""A run, or analyses of several dates in the order of their hours."""
    if isinstance(run, xr.Dataset):
        return run
    runs, name = open_runs(run), named(run)
    if len(runs) == 1:
        return runs[0]
    if any(issued(one) is not None for one in runs):
        raise DataError(
            f"{name!r} is {len(runs)} runs with forecasts, and a page is of one; give one of them, "
            "or score all by lead time: appa evaluate"
        )
    runs = sorted(runs, key=lambda one: one["time"].values[0])
    times = np.concatenate([one["time"].values for one in runs])
    if len(np.unique(times)) < len(times):
        raise DataError(
            f"the {len(runs)} runs of {name!r} share hours, and a page is of one of them; give "
            "one, and others by --baseline NAME=PATH"
        )
    alike = [(set(one.data_vars), one.sizes.get("member")) for one in runs]
    if any(one != alike[0] for one in alike):
        raise DataError(
            f"the {len(runs)} runs of {name!r} have not all the same variables and members; give "
            "dates of one system"
        )
    parts = [one.drop_vars("latents", errors="ignore") for one in runs]
    try:
        return xr.concat(  # type: ignore
            parts, "time", data_vars="minimal", coords="minimal", compat="override", join="exact",
            combine_attrs="drop_conflicts",
        )  # fmt: skip
    except ValueError as error:
        raise DataError(f"the runs of {name!r} do not fit together ({error})") from None


def stretches(ds: xr.Dataset) -> list[xr.Dataset]:
    r"""The parts of a run whose hours follow one another."""
    hours = ds["time"].values
    ends = np.flatnonzero(np.diff(hours) != np.timedelta64(1, "h")) + 1
    return [ds.isel(time=slice(a, b)) for a, b in zip([0, *ends], [*ends, len(hours)], strict=True)]
