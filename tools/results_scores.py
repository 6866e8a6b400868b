r"""What `results.py` has scored, read again, and pooled over dates with intervals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from results_plan import KIND

from appa.data import netcdf
from appa.evaluation.dates import over_dates
from appa.evaluation.forecasts import by_lead
from appa.evaluation.scores import pool

__all__ = ["ALL", "Results", "concat"]

HOUR = np.timedelta64(1, "h")
ALL = "all"
SHOWN = ("t2m", "z500", "t850", "u10", "msl", "q700")


class Results:
    r"""What was scored, by product and date.

    Arguments:
        folder: The folder that `results.py` wrote.
        beside: Others of the same dates, whose climatology is taken where there is none.
    """

    def __init__(self, folder: Path, beside: Results | None = None):
        self.about: dict[str, Any] = json.loads((folder / "about.json").read_text())
        self.parts: dict[str, dict[np.datetime64, xr.Dataset]] = {}
        self.diverged: dict[str, int] = {}
        for path in sorted(folder.glob("parts/*/*.nc")):
            ds, now = netcdf.load(path, KIND), np.datetime64(path.parent.name, "ns")
            if ds.data_vars:
                self.parts.setdefault(path.stem, {})[now] = ds
            elif ds.attrs.get("diverged"):
                self.diverged[path.stem] = self.diverged.get(path.stem, 0) + 1
        self.first: int = self.about["first"]
        self.main = f"reanalysis-{self.first}"
        if self.main not in self.parts:
            raise SystemExit(f"{folder} has no {self.main} yet; make it with: tools/results.py")
        sample = next(iter(self.parts[self.main].values()))
        known = sample["channel"].values.tolist()
        self.channels = [name for name in SHOWN if name in known] or known[:6]
        self.scale = self._scale() if beside is None else beside.scale
        self.shown = [*([ALL] if self.scale is not None else []), *self.channels]

    @property
    def windows(self) -> list[int]:
        r"""The windows that there are, in hours."""
        return [h for h in self.about["windows"] if f"reanalysis-{h}" in self.parts]

    def dates(self, product: str) -> int:
        return len(self.parts.get(product, {}))

    def _scale(self) -> xr.Dataset | None:
        r"""The climatology's errors and CRPS of all dates, by channel."""
        if "climatology" not in self.parts:
            return None
        parts = [pool(ds) for ds in self.parts["climatology"].values()]
        joined = xr.concat(parts, "time", coords="minimal", compat="override")
        return pool(joined.assign_attrs(parts[0].attrs))

    @cache  # noqa: B019
    def of(self, product: str, every: bool = False) -> dict[np.datetime64, xr.Dataset]:
        r"""The means of a product by date, with the channel *all*."""
        found = {}
        for now, ds in self.parts.get(product, {}).items():
            part = ds if every else ds.sel(channel=self.channels)
            if self.scale is not None:
                part = xr.concat([self._all(ds), part], "channel", combine_attrs="override")
            found[now] = part.assign_attrs(members=int(ds.attrs["members"]))
        return found

    def _all(self, ds: xr.Dataset) -> xr.Dataset:
        assert self.scale is not None
        names = ds["variable"].values != "sea_surface_temperature"
        ds, scale = ds.isel(channel=names), self.scale.isel(channel=names)
        error, crps = (scale[key] for key in ("squared_error", "crps"))
        data = {
            "squared_error": (ds["squared_error"] / error).mean("channel"),
            "variance": (ds["variance"] / error).mean("channel", skipna=False),
            "crps": (ds["crps"] / crps).mean("channel"),
            "weight": ds["weight"].max("channel"),
            "share": ds["share"].max("channel"),
        }
        one = xr.Dataset(data).expand_dims(channel=[ALL])
        about = {"variable": "all channels", "level": np.nan, "units": "of climatology"}
        return one.assign_coords({k: ("channel", [v]) for k, v in about.items()})

    # ---------------------------------------------------------------- scores with intervals

    @cache  # noqa: B019
    def by_window(self, last: bool, kind: str = "reanalysis") -> xr.Dataset:
        r"""Scores by the window's length, as `lead_time`: of the last hour, or of all."""
        known = [h for h in self.windows if f"{kind}-{h}" in self.parts]
        joined = concat([self._window(h, last, kind) for h in known], "lead_time", join="inner")
        return over_dates(joined.transpose("region", "init_time", "lead_time", "channel"))

    def of_window(self, hours: int, last: bool, kind: str = "reanalysis") -> xr.Dataset:
        r"""Scores of one length over all dates that it has."""
        found = self._window(hours, last, kind)
        found = over_dates(found.transpose("region", "init_time", "lead_time", "channel"))
        return found.isel(lead_time=0)

    def _window(self, hours: int, last: bool, kind: str) -> xr.Dataset:
        dates = []
        for now, ds in self.of(f"{kind}-{hours}").items():
            part = pool(ds.isel(time=[-1]) if last else ds)
            dates.append(part.expand_dims(init_time=[now], lead_time=[float(hours)]))
        return concat(dates, "init_time")

    def cycled(self) -> dict[int, xr.Dataset]:
        r"""The means of the LETKF after so many hours that it has seen, each date at its own
        hour, for :func:`compare`."""
        found: dict[int, list[xr.Dataset]] = {}
        last = int(self.about["letkf"]["hours"])
        for now, ds in self.of("letkf-cycled").items():
            ago = (now - ds["time"].values.astype("datetime64[ns]")) / HOUR
            for k, h in enumerate((last - ago).astype(int).tolist()):
                at = ds.isel(time=[k]).assign_coords(time=[now], start=("time", [now]))
                found.setdefault(h, []).append(at)
        return {h: concat(parts, "time").sortby("time") for h, parts in sorted(found.items())}

    @cache  # noqa: B019
    def leads_of(self, product: str) -> xr.Dataset:
        r"""The means of all dates by lead time, for :func:`compare`."""
        parts = [
            by_lead(ds.isel(time=np.flatnonzero(ds["time"].values > now)), now)
            for now, ds in self.of(product).items()
        ]
        return concat(parts, "init_time")

    @cache  # noqa: B019
    def by_lead(self, product: str) -> xr.Dataset:
        r"""Scores by lead time."""
        return over_dates(self.leads_of(product))

    @cache  # noqa: B019
    def by_hour(self, product: str) -> xr.Dataset:
        r"""Scores by the hour of a window, that of now being the last."""
        parts = self.of(product)
        return over_dates(list(parts.values()), [now - HOUR * self.first for now in parts])

    @cache  # noqa: B019
    def runs(self, product: str, last: bool = False) -> xr.Dataset:
        r"""The means of all dates one after another, for :func:`compare`."""
        parts = []
        for now, ds in self.of(product).items():
            part = ds.isel(time=[-1]) if last else ds
            parts.append(part.assign_coords(start=("time", np.full(part.sizes["time"], now))))
        return concat(parts, "time").sortby("time")


def concat(parts: Sequence[xr.Dataset], dim: str, **options: Any) -> xr.Dataset:
    common: Any = {"coords": "minimal", "compat": "override", "combine_attrs": "override"}
    return xr.concat(parts, dim, **common, **options)
