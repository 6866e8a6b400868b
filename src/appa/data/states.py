r"""From datasets to tensors and back: the one place where both are known.

A state stacks the channels :math:`c` of :func:`appa.data.variables.channels` and standardizes each
with the mean and standard deviation of the training years,

.. math:: x_c = \frac{y_c - \mu_c}{\sigma_c} , \qquad y_c = \mu_c + \sigma_c \, x_c .

Where a variable is undefined (SST over land) :math:`x_c = 0`, the training mean, and on the way
back the land mask makes it undefined again. Anything undefined elsewhere is a fault of the data and
an error, since a network would take it for the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, nearest
from .clock import as_datetime64
from .layout import COORDINATES
from .reduction import SPACE
from .variables import ATMOSPHERIC, LEVELS, SURFACE, VARIABLES, channels

if TYPE_CHECKING:
    import xarray as xr

    from ..config import Config

__all__ = ["Standardizer", "undefined"]


class Standardizer:
    r"""Converts canonical datasets to standardized states and back.

    Arguments:
        statistics: Mean and standard deviation of each variable and level, as
            :func:`appa.data.statistics.compute` gives them.
        surface: The surface variables, in order.
        atmospheric: The variables on levels, in order.
        levels: The pressure levels in hPa, in order.
        land_mask: Where SST is undefined, with shape :math:`(H, W)`: booleans, or the share of
            land in each cell, which leaves coasts undecided: SST must be defined where it is 0
            and is undefined on the way back from 0.5. Without it SST may be undefined anywhere,
            and comes back defined everywhere.

    Example:
        >>> ds = open_store("planet")
        >>> standardizer = Standardizer(statistics.load("statistics.nc"), land_mask=undefined(ds))
        >>> x = standardizer.to_tensor(ds.isel(time=slice(0, 24)))
        >>> x.shape
        torch.Size([24, 71, 48, 96])
    """

    def __init__(
        self,
        statistics: xr.Dataset,
        surface: Sequence[str] = SURFACE,
        atmospheric: Sequence[str] = ATMOSPHERIC,
        levels: Sequence[int] = LEVELS,
        land_mask: Any = None,
    ):
        self.statistics = statistics
        self.surface, self.atmospheric = tuple(surface), tuple(atmospheric)
        self.levels = tuple(int(level) for level in levels)
        self.channels = channels(self.surface, self.atmospheric, self.levels)

        moments = []
        for name in self.names:
            var = _select(statistics, name, self.levels, "the statistics have")
            moments += np.atleast_2d(var.transpose(..., "statistic").values).tolist()
        mean, std = torch.tensor(moments, dtype=torch.float64).unbind(-1)
        self.mean = mean[:, None, None].to(torch.float32)
        self.std = std[:, None, None].to(torch.float32)

        self.land: np.ndarray | None = None  # undefined on the way back
        self.sea: np.ndarray | None = None  # defined on the way in
        if land_mask is not None:
            mask = np.asarray(land_mask)
            if mask.ndim != 2:
                raise DataError(
                    f"a land mask has shape (latitude, longitude), found {mask.shape}; for "
                    f"example ds['land_sea_mask']"
                )
            self.land = mask if mask.dtype == bool else mask >= 0.5
            self.sea = ~mask if mask.dtype == bool else mask == 0

    @classmethod
    def from_config(cls, config: Config, statistics: xr.Dataset, land_mask: Any = None):
        r"""A standardizer for the variables and levels of a configuration."""
        data = config.data
        return cls(statistics, data.surface, data.atmospheric, data.levels, land_mask)

    @property
    def names(self) -> tuple[str, ...]:
        r"""The variables, in the order of their channels."""
        return self.surface + self.atmospheric

    def standardize(self, y: Tensor) -> Tensor:
        r"""Standardizes physical values :math:`(*, C, H, W)`; undefined values become 0."""
        x = (y - self.mean.to(y.device)) / self.std.to(y.device)
        return torch.nan_to_num_(x, nan=0.0, posinf=torch.inf, neginf=-torch.inf)

    def restore(self, x: Tensor) -> Tensor:
        r"""Physical values :math:`(*, C, H, W)` of standardized ones, in single precision."""
        return x.to(torch.float32) * self.std.to(x.device) + self.mean.to(x.device)

    def to_tensor(self, ds: xr.Dataset) -> Tensor:
        r"""The standardized states of a canonical dataset.

        Arguments:
            ds: A dataset with dimensions (member,) (time,) level, latitude, longitude. It may
                have more variables and levels than the states.

        Returns:
            A tensor with shape :math:`(*, C, H, W)`, :math:`*` being the dataset's members and
            times, if it has such dimensions.
        """
        latitude = ds["latitude"].values
        if latitude.size > 1 and latitude[0] < latitude[-1]:
            raise DataError(
                f"latitude runs from {latitude[0]:g} to {latitude[-1]:g}; states run from north to "
                f"south: open the store with appa.open_store, or pass it the dataset"
            )
        fields = [_select(ds, name, self.levels, "the dataset has") for name in self.names]
        lead = [dim for dim in ("member", "time") if any(dim in f.dims for f in fields)]
        shape = [ds.sizes[dim] for dim in lead]
        grid = [ds.sizes["latitude"], ds.sizes["longitude"]]
        if self.sea is not None and list(self.sea.shape) != grid:
            raise DataError(
                f"the land mask has shape {self.sea.shape} but the dataset's grid is "
                f"{tuple(grid)}; give the mask of this grid"
            )

        states = np.empty([*shape, len(self.channels), *grid], dtype=np.float32)
        c = 0
        for name, field in zip(self.names, fields, strict=True):
            space = [dim for dim in SPACE if dim in field.dims]
            if set(field.dims) != {*lead, *space}:
                raise DataError(
                    f"{name} has dimensions {field.dims}, expected {(*lead, *space)}; select one "
                    f"of each other dimension, for example ds.isel(...)"
                )
            values = field.transpose(*lead, *space).to_numpy()
            if "level" not in space:
                values = values[..., None, :, :]
            self._check(ds, name, lead, values)
            states[..., c : c + values.shape[-3], :, :] = values
            c += values.shape[-3]
        return self.standardize(torch.from_numpy(states))

    def to_dataset(self, x: Tensor, times: Any, grid: Any) -> xr.Dataset:
        r"""The canonical dataset of standardized states.

        Arguments:
            x: States with shape :math:`(C, H, W)`, :math:`(T, C, H, W)` or
                :math:`(M, T, C, H, W)`.
            times: The :math:`T` times of the states, or one time.
            grid: Where they are: a :class:`appa.data.grids.Grid`, a dataset, or anything with
                `latitude` and `longitude`.
        """
        import xarray as xr

        times = as_datetime64(times).astype("datetime64[ns]")
        latitude, longitude = (np.asarray(v, np.float64) for v in (grid.latitude, grid.longitude))
        sizes = {"time": times.size} if times.ndim else {}
        if x.ndim - 3 > len(sizes):
            sizes = {"member": x.shape[0], **sizes}
        tail = {"channel": len(self.channels), "latitude": latitude.size}
        expected = {**sizes, **tail, "longitude": longitude.size}
        if tuple(x.shape) != tuple(expected.values()):
            raise DataError(
                f"states have shape {tuple(x.shape)}, expected {tuple(expected.values())} for "
                f"{', '.join(expected)}; check the times and the grid"
            )

        y = self.restore(x.detach()).cpu().numpy()
        data: dict[str, Any] = {}
        c = 0
        for name in self.names:
            var = VARIABLES[name]
            if var.surface:
                values = y[..., c, :, :]
                if var.missing == "land" and self.land is not None:
                    values = np.where(self.land, np.float32(np.nan), values)
                data[name] = ((*sizes, *SPACE[1:]), values, var.attrs)
                c += 1
            else:
                values = y[..., c : c + len(self.levels), :, :]
                data[name] = ((*sizes, *SPACE), values, var.attrs)
                c += len(self.levels)

        coords: dict[str, Any] = {
            "time": (("time",) if times.ndim else (), times, COORDINATES["time"]),
            "latitude": ("latitude", latitude, COORDINATES["latitude"]),
            "longitude": ("longitude", longitude, COORDINATES["longitude"]),
        }
        if self.atmospheric:
            coords["level"] = ("level", np.array(self.levels), COORDINATES["level"])
        if "member" in sizes:
            coords["member"] = ("member", np.arange(sizes["member"]), {"long_name": "member"})
        return xr.Dataset(data, coords, {"Conventions": "CF-1.11"})

    def _check(self, ds: xr.Dataset, name: str, lead: list[str], values: np.ndarray) -> None:
        r"""Raises where values (*, L, H, W) are not finite and ought to be."""
        if np.isfinite(values.sum(dtype=np.float64)):  # the usual case, without a mask in memory
            return
        bad = ~np.isfinite(values)
        if VARIABLES[name].missing == "land":
            bad &= ~(np.isnan(values) & (True if self.sea is None else ~self.sea))
        if not bad.any():
            return
        first = np.unravel_index(int(bad.argmax()), bad.shape)
        where = name if VARIABLES[name].surface else f"{name} at {self.levels[first[-3]]} hPa"
        found = "infinite" if np.isinf(values[first]) else "undefined (NaN)"
        if "time" in ds.coords:
            time = ds["time"].values[first[lead.index("time")] if "time" in lead else ()]
            where += f" at {time.astype('datetime64[h]')}"
        if "member" in lead:
            where += f" of member {first[0]}"
        state = bad[(*first[: len(lead)], first[-3])]
        raise DataError(
            f"{where} is {found} at {state.sum()} of {state.size} points (in all, {name} has "
            f"{bad.sum()} such values), where it must be defined; find all faults with: "
            f"appa data check STORE"
        )


def undefined(ds: xr.Dataset) -> np.ndarray | None:
    r"""Where the SST of a store is undefined, as booleans :math:`(H, W)`.

    That is where the first hour it has data for is undefined, since coasts differ between stores;
    half or more of a cell being land in a store without SST; and `None` if it has no land mask
    either.
    """
    if "sea_surface_temperature" in ds:
        sst = ds["sea_surface_temperature"]
        sst = sst.isel({dim: 0 for dim in sst.dims if dim not in (*SPACE, "time")})
        hours = sst.sizes.get("time", 1)
        # Public copies have a time axis that begins before their data: look further, not for long.
        tries = [*range(min(hours, 48)), *np.linspace(0, hours - 1, 32).astype(int).tolist()]
        for hour in tries:
            state = sst.isel(time=hour) if "time" in sst.dims else sst
            missing = np.isnan(state.transpose("latitude", "longitude").to_numpy())
            if not missing.all():
                return missing
    if "land_sea_mask" in ds:
        return ds["land_sea_mask"].transpose("latitude", "longitude").to_numpy() >= 0.5
    return None


def _select(ds: xr.Dataset, name: str, levels: Sequence[int], what: str) -> xr.DataArray:
    r"""A variable on the levels asked for."""
    if name not in ds:
        present = [str(n) for n in ds.data_vars if n in VARIABLES]
        raise DataError(f"{what} no variable {name!r}{nearest(name, present)}")
    var = ds[name]
    if VARIABLES[name].surface:
        return var
    if "level" not in var.dims:
        raise DataError(f"{name} should have levels: its dimensions are {var.dims}")
    present = var["level"].values.astype(int).tolist()
    for level in levels:
        if level not in present:
            close = min(present, key=lambda other: abs(other - level))
            raise DataError(
                f"{what} no {name} at {level} hPa; the nearest level is {close}, and there "
                f"are {', '.join(map(str, present))}"
            )
    return var if present == list(levels) else var.sel(level=list(levels))
