r"""From a network to departures: what is synthesized, read and compiled is white."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import appa
from appa.data.grids import Grid
from appa.data.planet import statistics
from appa.data.states import Standardizer, undefined
from appa.data.variables import ATMOSPHERIC, SURFACE
from appa.observations import checks
from appa.observations.operators import StateSpace, compile_observations, incomparable
from appa.observations.records import record

HOURS = 4
DERIVED = {"10m_wind_speed": 0.5, "10m_wind_direction": 4.0, "total_column_water_vapour": 1.5}
PRESSURE = {"surface_pressure": 40.0}
SOUNDED = {"relative_humidity": 5.0, "thickness_500_1000": 10.0}
SOUNDED |= {"brightness_temperature_amsua_6": 0.3}


@pytest.fixture(scope="module")
def planet():
    ds = appa.open_store("planet").isel(time=slice(30, 30 + HOURS)).load()
    grid = Grid.from_coordinates(ds["latitude"], ds["longitude"])
    standardizer = Standardizer(statistics(), land_mask=undefined(ds))
    return ds, StateSpace.from_statistics(standardizer, grid, ds), standardizer.to_tensor(ds)


@pytest.mark.parametrize("form", ["memory", "parquet and NetCDF", "CSV and Zarr"])
def test_departures_of_the_truth_are_white(planet, tmp_path, form):
    r"""Of each observable the departures y − A(x) of the true x, in units of the error, have mean 0
    and variance 1, within five standard deviations of what n independent ones have, and are
    independent of each other."""
    ds, space, x = planet
    network = appa.named_network(space.grid, stations=600)
    errors = DERIVED | PRESSURE
    satellite = replace(
        network.satellites[0], variables=(*ATMOSPHERIC, *SOUNDED), errors=SOUNDED, noise=0.05
    )
    network = replace(
        network,
        variables=(*SURFACE, *errors),
        errors=errors,
        satellites=(satellite,),
        noise=0.05,
    )
    if form == "memory":
        sources = list(appa.observe(ds, network, statistics=statistics(), seed=4))
    else:
        table, swath = {
            "parquet and NetCDF": ("obs.parquet", "swath.nc"),
            "CSV and Zarr": ("obs.csv", "swath.zarr"),
        }[form]
        places = {"out": tmp_path / table, "swath": tmp_path / swath}
        made = record(ds, network, **places, statistics=statistics(), seed=4)
        sources = list(made.files.values())

    observations = appa.read_observations(sources)
    # high up the planet's air is supersaturated here and there, more than is plausible
    assert observations.excluded["reason"].tolist() == [checks.RANGE], observations.report()
    assert "relative_humidity" in observations.excluded["example"][0]
    assert observations.excluded["count"][0] < 100
    assert not observations.notes
    names = {*SURFACE, *ATMOSPHERIC, *errors, *SOUNDED}
    assert set(observations.variables) == names
    operators = compile_observations(observations, space, ds["time"].values)
    assert not len(operators.excluded), operators.excluded
    assert sum(len(op) for op in operators if op is not None) == len(observations)

    parts: dict[str, list[np.ndarray]] = {}
    for k, op in enumerate(operators):
        assert op is not None
        d = op.departure(x[k : k + 1].to(torch.float64))[0].numpy()
        # what an operator adds to errors of pressure, for its height, is not in the noise
        added = op.rows["variable"] == "surface_pressure"
        assert (op.rows["error"][added] >= 40).all()
        d[added] *= op.rows["error"][added] / 40
        for name, rows in op.rows.groupby("variable").indices.items():
            parts.setdefault(str(name), []).append(d[rows])
    assert set(parts) == names
    for name, found in parts.items():
        d = np.concatenate(found)
        n = len(d)
        assert n > 500, name
        assert abs(d.mean()) < 5 / np.sqrt(n), name
        assert abs(d.var() - 1) < 5 * np.sqrt(2 / n), name
        assert abs((d[1:] * d[:-1]).mean()) < 5 / np.sqrt(n - 1), name


def test_what_cannot_be_compared_is_counted_without_operators(planet):
    ds, space, _ = planet
    table, _ = appa.observe(ds, appa.named_network(space.grid, stations=50))
    table.loc[table["variable"] == "2m_temperature", "elevation"] += 9000
    table["elevation"] = table["elevation"].clip(upper=8500)
    observations = appa.read_observations(table)
    lost = incomparable(observations, space, ds["time"].values)
    operators = compile_observations(observations, space, ds["time"].values)
    assert lost.equals(operators.excluded)
    assert lost["count"].tolist() == [50 * HOURS]
