r"""Makes the files of the bundled planet from the simulations `docs/planet.md` names.

appa data simulate train.zarr --members 24 --first-year 1901 --every 6
appa data statistics train.zarr statistics.nc
appa data climatology train.zarr climatology.nc --diurnal 1
appa data simulate test.zarr --first-year 2021 --days 85
python tools/bundle_planet.py test.zarr statistics.nc climatology.nc
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import appa.data.climatology
import appa.data.statistics
from appa.data.planet.packing import pack
from appa.data.stores import open_store
from appa.data.variables import VARIABLES

START, HOURS = "2021-03-21T00", 96
BUNDLED = Path(appa.data.statistics.__file__).parent / "bundled"
# In standard deviations of the field: rounding to 0.03 errs by 0.03/√12, 0.9 %. Smooth fields
# change by less in an hour: their step is half an hour's change, so that tendencies survive.
STEP = 0.03
CHANGE = 0.5
SPACE = ("latitude", "longitude")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("excerpt", help="store of the held-out member")
    parser.add_argument("statistics", help="statistics of the training simulation")
    parser.add_argument("climatology", help="climatology of the training simulation")
    parser.add_argument("--out", type=Path, default=BUNDLED)
    args = parser.parse_args()

    statistics = appa.data.statistics.load(args.statistics)
    appa.data.statistics.save(statistics, args.out / "planet-statistics.nc")

    ds = open_store(args.excerpt).sel(time=slice(START, None)).isel(time=slice(0, HOURS)).load()
    steps = {}
    for name in VARIABLES:
        # The excerpt's own deviation where it is smaller than the climate's.
        own = ds[name].std(("time", *SPACE))
        whole = statistics[name].sel(statistic="std")
        change = np.sqrt((ds[name].diff("time").astype("float64") ** 2).mean(("time", *SPACE)))
        step = np.minimum(STEP * np.minimum(own, whole), CHANGE * change)
        # Multiples are stored in 16 bits.
        steps[name] = np.maximum(step, abs(ds[name]).max(("time", *SPACE)) / 32_000).values
    pack(ds, args.out / "planet.zarr.zip", steps)

    clim = appa.data.climatology.load(args.climatology)
    steps = {}
    for name in VARIABLES:
        # Prescribed, the sea has next to no weather: there the climate sets the step.
        whole = statistics[name].sel(statistic="std").values
        weather = np.maximum(clim[f"{name}_std"].mean(SPACE).values, 0.1 * whole)
        steps[name] = 0.02 * weather
        steps[f"{name}_std"] = 0.01 * weather
    pack(clim, args.out / "planet-climatology.zarr.zip", steps)
    for file in sorted(args.out.glob("planet*")):
        print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
