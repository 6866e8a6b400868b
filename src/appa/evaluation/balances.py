r"""Balances of an ensemble beside those of the truth, state by state.

Of each state, and each layer or level,

* the *hypsometric residual* is the root-mean-square over the globe, by area, of the thickness from
  geopotential less that from temperature and humidity, in metres
  (:func:`~appa.evaluation.physics.hydrostatic_residual`);
* *geostrophic balance* is how the wind goes with the gradient of geopotential away from the
  equator (:func:`~appa.evaluation.physics.geostrophic_balance`).

The truth is not balanced exactly either, and its levels are some way apart: members are right where
they are as far from balance as the truth is, not nearer. Told are quantiles over states, of which
few are read, spread over the hours, and few at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from ..data.reduction import reduce_blocks
from ..data.stores import open_store
from .ensembles import matched
from .physics import (
    EARTH,
    PLANET,
    Constants,
    geostrophic_balance,
    global_mean,
    hydrostatic_residual,
)
from .spectra import QUANTILES

__all__ = ["balances", "constants_of"]

STATES = 16  # of the truth, and of members, unless there are more members
MOST = 2**26  # bytes of states that are read together
HYPSOMETRIC = ("geopotential", "temperature")
GEOSTROPHIC = ("geopotential", "u_component_of_wind", "v_component_of_wind")


def constants_of(truth: xr.Dataset) -> Constants:
    r"""The constants of the world a truth is of: JCM's where it says so, or else Earth's."""
    return PLANET if str(truth.attrs.get("source", "")).startswith("jcm") else EARTH


def balances(
    estimate: xr.Dataset,
    truth: Any,
    *,
    constants: Constants | None = None,
    states: int = STATES,
    workers: int | None = None,
) -> xr.Dataset | None:
    r"""Quantiles of the balances of members and of the truth.

    Arguments:
        estimate, truth: As of :func:`appa.evaluation.ensembles.averages`.
        constants: The planet's constants, by default :func:`constants_of` the truth.
        states: How many states of each are looked at.
        workers: The number of threads.

    Returns:
        With dimensions `(source, quantile, layer)` or `(source, quantile, level)`, where `source`
        is `truth` or `members`: `residual` in m, `correlation`, `speed_correlation`, `ratio`,
        `angle` and `angle_spread` in degrees. What has not the variables it takes is left out;
        :py:`None` where that is all.
    """
    truth = open_store(truth)
    constants = constants_of(truth) if constants is None else constants
    estimate, truth = matched(estimate, truth)
    needed = (*GEOSTROPHIC, "temperature", "specific_humidity")
    names = [n for n in needed if n in estimate and n in truth and "level" in estimate[n].dims]
    levels = [p for p in estimate["level"].values if p in truth["level"].values] if names else []
    # a layer is between two levels
    layers, winds = _has(names, HYPSOMETRIC) and len(levels) > 1, _has(names, GEOSTROPHIC)
    if not levels or not (layers or winds):
        return None
    members, hours = estimate.sizes["member"], estimate.sizes["time"]
    size = 4 * len(names) * len(levels) * truth.sizes["latitude"] * truth.sizes["longitude"]
    group = max(1, MOST // size)  # states that are read together
    # all members at as many hours as that allows, one hour at least
    parts: list[Any] = [
        ("members", slice(m, m + group), [hour])
        for hour in _spread(hours, max(1, states // members))
        for m in range(0, members, group)
    ]
    chosen = _spread(hours, states)
    parts += [("truth", None, chosen[k : k + group]) for k in range(0, len(chosen), group)]

    def work(part: Any) -> list[Any]:
        source, some, at = part
        ds = truth if source == "truth" else estimate.isel(member=some)
        few = ds[names].isel(time=at).sel(level=levels).load(scheduler="synchronous")
        # means are over space only: hours are states here
        return [(source, _states(few.rename(time="hour"), names, constants))]

    found = reduce_blocks(
        work,
        lambda groups: [item for group in groups for item in group],
        parts,
        workers=workers,
        description="balances",
        unit="blocks",
    )
    sources = []
    for source in ("truth", "members"):
        every = xr.concat([ds for s, ds in found if s == source], "state")
        sources.append(every.quantile(QUANTILES, "state").astype(np.float64))
    ds = xr.concat(sources, xr.DataArray(["truth", "members"], dims="source", name="source"))
    return ds.assign_attrs(states=members * len(_spread(hours, max(1, states // members))))


def _states(few: xr.Dataset, names: list[str], constants: Constants) -> xr.Dataset:
    r"""The balances of states, along `state`."""
    data: dict[str, xr.DataArray] = {}
    if _has(names, HYPSOMETRIC) and few.sizes["level"] > 1:
        residual = global_mean(hydrostatic_residual(few, constants) ** 2) ** 0.5
        attrs = {"long_name": "hypsometric residual, root mean square", "units": "m"}
        data["residual"] = residual.assign_attrs(attrs)
    if _has(names, GEOSTROPHIC):
        data |= dict(geostrophic_balance(few, constants).items())  # type: ignore[arg-type]
    ds = xr.Dataset(data)
    ds = ds.drop_vars([n for n in ("hour", "member", "trajectory") if n in ds.coords])
    lead = [dim for dim in ("member", "hour") if dim in ds.dims]
    return ds.stack(state=lead, create_index=False)


def _has(names: list[str], group: tuple[str, ...]) -> bool:
    return all(name in names for name in group)


def _spread(hours: int, count: int) -> list[int]:
    r"""Places of hours, evenly from the first to the last."""
    return np.unique(np.linspace(0, hours - 1, min(hours, count)).round().astype(int)).tolist()
