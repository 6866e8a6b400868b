r"""One field of a run or a store: the mean of an ensemble, its spread or a member, or how far they
are from the truth.

Values have the colours of their variable. Spread is drawn from 0 and differences are centred on 0,
each in colours of their own that are the same for all variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from ..data.variables import VARIABLES, Channel
from ..errors import DataError, nearest
from .maps import add_coastline, draw_colorbar, globe, moment, plot_map, project, split
from .style import INK, label, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["chosen", "field_of", "hour_of", "locate", "plot_field", "shown_of"]

SPREAD, DIFFERENCE = "amp", "balance"  # cmocean's, from white and about white
SPACE, MASK = {"latitude", "longitude"}, "land_sea_mask"
Limits = tuple[float, float]


# ---------------------------------------------------------------- which field


def locate(ds: xr.Dataset, name: str, level: float | None = None) -> tuple[str, int | None]:
    r"""The variable and level that a name means: `geopotential` with a level, `z500`, `t2m`."""
    there = [str(v) for v in ds.data_vars if set(ds[v].dims) >= SPACE]
    words: dict[str, tuple[str, int | None]] = {}
    for variable in there:
        short = VARIABLES[variable].short if variable in VARIABLES else variable
        words[variable] = words[short] = (variable, None)
        for p in _levels(ds, variable) if variable in VARIABLES else ():
            words[Channel(variable, p).name] = (variable, p)
    if name not in words:
        known = [*there, *(w for w in words if w not in there)]
        raise DataError(f"there is no {name!r} to draw{nearest(name, known)}")
    variable, told = words[name]
    levels = _levels(ds, variable)
    if not levels:
        if level is not None:
            raise DataError(f"{variable} has no levels, found {level:g} hPa; leave the level out")
        return variable, None
    if told is not None and level is not None and told != level:
        raise DataError(f"found both {name!r} and a level of {level:g} hPa; give one of them")
    told = level if told is None else told
    if told is None and len(levels) == 1:
        told = levels[0]
    if told not in levels:
        at = "levels" if told is None else f"no {told:g} hPa"
        raise DataError(f"{variable} has {at}; choose one of {', '.join(map(str, levels))} hPa")
    return variable, int(told)


def _levels(ds: xr.Dataset, variable: str) -> list[int]:
    return [int(p) for p in ds["level"].values] if "level" in ds[variable].dims else []


def hour_of(ds: xr.Dataset, hour: Any = None) -> np.datetime64:
    r"""An hour of a dataset: a date, a number of hours since its first, or by default the last."""
    if "time" not in ds.dims:
        raise DataError(f"a dataset without times has no hours to choose from; it has {[*ds.dims]}")
    times = ds["time"].values.astype("datetime64[ns]")
    if hour is None:
        return times[-1]
    if isinstance(hour, str) and hour.strip().isdigit():
        hour = int(hour)
    try:
        if isinstance(hour, int | np.integer):
            found = times[0] + np.timedelta64(int(hour), "h")
        else:
            found = pd.Timestamp(hour).to_datetime64().astype("datetime64[ns]")
    except ValueError:
        raise DataError(f"{hour!r} is no hour; give a date such as 2021-03-21T06") from None
    if found not in times:
        first, last = (str(t.astype("datetime64[h]")) for t in times[[0, -1]])
        raise DataError(
            f"there is no hour {found.astype('datetime64[h]')}; there are {len(times)}, from "
            f"{first} to {last}"
        )
    return found


def field_of(ds: xr.Dataset, name: str, level: int | None, hour: np.datetime64) -> xr.DataArray:
    r"""A field of a dataset, with members where it has them."""
    field = ds[name]
    field = field.sel(time=hour) if "time" in field.dims else field
    return field if level is None else field.sel(level=level)


def shown_of(field: xr.DataArray, show: str | int) -> tuple[xr.DataArray, str]:
    r"""The mean, the spread or a member of a field, and what it is in words."""
    if isinstance(show, str) and show.strip().isdigit():
        show = int(show)
    if show not in ("mean", "spread") and not isinstance(show, int | np.integer):
        raise DataError(f"found {show!r}; give 'mean', 'spread', or a member's number from 0")
    members = field.sizes.get("member", 0)
    if show == "spread":
        if members < 2:
            raise DataError("a single state has no spread; give an ensemble of 2 members or more")
        return field.std("member", ddof=1), f"spread of {members} members"
    if show == "mean":
        if members == 0:
            return field, ""
        return field.mean("member"), f"mean of {members} members" if members > 1 else ""
    if not 0 <= int(show) < max(members, 1):
        raise DataError(f"there is no member {show}; there are {max(members, 1)}, from 0")
    return (field.isel(member=int(show)) if members else field), f"member {show}"


# ---------------------------------------------------------------- drawing


def add_field(
    ax: Axes | None,
    field: xr.DataArray,
    name: str,
    *,
    colours: str,
    ends: Limits | None = None,
    land: xr.DataArray | None = None,
    projection: str | None = None,
    ticks: tuple[bool, bool] = (True, True),
    location: str = "right",
    shrink: float = 0.75,
    gid: str = "field",
    colorbar: bool = True,
) -> tuple[Figure, Axes, Any]:
    r"""Draws a spread or a difference on the globe, with its colour bar: values without an offset,
    in the variable's unit but not in its colours, which are those of values."""
    import cmocean

    look = style(name)
    figure, ax = globe(ax, projection, ticks)
    latitude, longitude, values = split(look.scale * field)
    ends = ends or magnitude(values, both=colours == DIFFERENCE)
    mesh = ax.pcolormesh(
        *project(projection)(latitude[:, None], longitude[None, :]),
        np.ma.masked_invalid(values),
        cmap=cmocean.cm.cmap_d[colours],
        vmin=ends[0],
        vmax=ends[1],
        rasterized=True,
        zorder=1,
        gid=gid,
    )
    mesh.set_clip_path(ax.patches[0])
    if land is not None:
        add_coastline(ax, land, projection)
    if colorbar:
        extend = "both" if colours == DIFFERENCE else "max"
        draw_colorbar(figure, ax, mesh, look.difference, extend, shrink, location)
    return figure, ax, mesh


def magnitude(values: np.ndarray, both: bool = False, most: float = 0.99) -> Limits:
    r"""Ends of a colour scale from 0, or about 0, for all but 1 % of magnitudes."""
    finite = np.abs(values[np.isfinite(values)])
    high = (float(np.quantile(finite, most)) if finite.size else 1.0) or 1.0
    return (-high if both else 0.0), high


def chosen(
    ds: xr.Dataset,
    name: str,
    level: int | None,
    hour: np.datetime64,
    show: str | int,
    truth: xr.Dataset | None,
) -> tuple[xr.DataArray, str, str]:
    r"""What is drawn of an hour: the field in its stored unit, what it is in words, and whether it
    is a `value`, a `spread` or a `difference`."""
    field, words = shown_of(field_of(ds, name, level, hour), show)
    if show == "spread":
        if truth is not None:
            raise DataError(
                "a spread has no difference to the truth; leave the truth out, or show the mean"
            )
        return field, words, "spread"
    if truth is None:
        return field, words, "value"
    locate(truth, name, level)
    field = field - _placed(field_of(truth, name, level, hour_of(truth, hour)), field)
    return field, f"{words or 'estimate'} − truth", "difference"


def _placed(y: xr.DataArray, x: xr.DataArray) -> xr.DataArray:
    r"""The truth at the places of an estimate; coordinates may be rounded differently."""
    y = y.transpose("latitude", "longitude")
    step = 360 / x.sizes["longitude"]
    for dim in ("latitude", "longitude"):
        if y.sizes[dim] != x.sizes[dim] or np.abs(y[dim].values - x[dim].values).max() > step / 100:
            raise DataError(
                f"the estimate has {x.sizes['latitude']}×{x.sizes['longitude']} points, the truth "
                f"{y.sizes['latitude']}×{y.sizes['longitude']} or others; regrid one of them"
            )
    return y.assign_coords(latitude=x["latitude"], longitude=x["longitude"])


def plot_field(
    ds: xr.Dataset,
    name: str,
    level: int | None = None,
    hour: Any = None,
    *,
    show: str | int = "mean",
    truth: xr.Dataset | None = None,
    land: xr.DataArray | None = None,
    projection: str | None = None,
    ends: Limits | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    r"""Draws one field of a run or a store at an hour.

    Arguments:
        ds: An ensemble, or single states.
        name: The variable, or a channel such as `"z500"`.
        level: The level in hPa, where the variable has levels and the name does not tell.
        hour: A date, or a number of hours since the first; by default the last.
        show: `"mean"`, `"spread"`, or the number of a member, from 0.
        truth: The truth, to draw the difference to it.
        land: The land mask, by default that of the truth or the dataset.
        projection, ax: As of :func:`~appa.plots.maps.plot_map`.
        ends: The ends of the colour scale in the unit shown, by default the field's range; of
            differences they are symmetric.
        title: The title, by default the variable, what is shown of it, and the hour.

    Example:
        >>> plot_field(analysis, "z500", show="spread").savefig("spread.png")
    """
    variable, level = locate(ds, name, level)
    style(variable)  # or its error
    at = hour_of(ds, hour)
    field, words, kind = chosen(ds, variable, level, at, show, truth)
    if land is None:
        land = next((d[MASK] for d in (truth, ds) if d is not None and MASK in d), None)
    if title is None:
        title = " · ".join(w for w in (label(variable, level), words, moment(at)) if w)
    if kind == "value":
        return plot_map(
            field, name=variable, land=land, ends=ends, title=title, projection=projection, ax=ax
        )
    figure, ax, _ = add_field(
        ax,
        field,
        variable,
        colours=SPREAD if kind == "spread" else DIFFERENCE,
        ends=ends,
        land=land,
        projection=projection,
    )
    ax.set_title(title, color=INK, fontsize=10, loc="left")
    return figure
