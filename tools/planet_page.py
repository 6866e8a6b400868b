r"""Makes the figures of `docs/planet.md` and rewrites the tables between its markers.

python tools/planet_page.py              # from the bundled planet alone, about half a minute
python tools/planet_page.py --simulate   # and the table that needs two simulations, minutes

Every number in a table of that page comes from here. A table stands between the comments
`begin NAME` and `end NAME`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np
import planet_figures as figures
import xarray as xr

import appa.data.planet
from appa.data.climatology import evaluate
from appa.data.stores import open_store
from appa.data.variables import VARIABLES, channels
from appa.evaluation.diurnal import by_local_hour, daily_harmonic
from appa.evaluation.physics import (
    PLANET,
    geostrophic_balance,
    global_mean,
    hydrostatic_error,
    hydrostatic_residual,
    jets,
    relative_humidity,
    saturation_humidity,
    thickness,
)

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "planet.md"
FIGURES = ROOT / "docs" / "figures" / "planet"
BANDS = {
    "30–60° N": (30, 60),
    "10–30° N": (10, 30),
    "10° S–10° N": (-10, 10),
    "10–30° S": (-30, -10),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", action="store_true", help="run the two simulations as well")
    args = parser.parse_args()

    ds = open_store("planet").load()
    months = year()
    tables = {
        "excerpt": excerpt(ds),
        "climate": climate(ds, months),
        "hydrostatic": hydrostatic(ds),
        "geostrophic": geostrophic(ds),
        "humidity": humidity(ds),
        "day": day(ds),
        "memory": memory(ds),
    }
    if args.simulate:
        tables["sun"] = sun()
    text = PAGE.read_text()
    for name, table in tables.items():
        pattern = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text, found = re.subn(pattern, lambda m, t=table: m[1] + t + m[2], text, flags=re.DOTALL)
        if found != 1:
            raise SystemExit(f"{PAGE} has {found} places for the table {name!r}, expected one")
    PAGE.write_text(text)

    FIGURES.mkdir(parents=True, exist_ok=True)
    for name, figure in {
        "maps": figures.maps(ds),
        "zonal": figures.zonal(months),
        "seasons": figures.seasons(months, ds["land_sea_mask"]),
        "balances": figures.balances(ds),
        "day": figures.day(ds, BANDS),
    }.items():
        size = figures.save(figure, FIGURES / f"{name}.png")
        print(f"{name}.png: {size / 1e3:.0f} kB")


def year() -> xr.Dataset:
    r"""The climatology in the middle of each month, the mean of 0, 6, 12 and 18 UTC."""
    times = [f"2021-{month:02d}-15T{h:02d}" for month in range(1, 13) for h in (0, 6, 12, 18)]
    expected = evaluate(appa.data.planet.climatology(), times)
    return expected.groupby("time.month").mean("time")


def table(header: str, rows: list[str]) -> str:
    columns = header.count("|") + 1
    lines = [header, "|".join(["---"] + ["--:"] * (columns - 1)), *rows]
    return "".join(f"| {line.replace('|', ' | ')} |\n" for line in lines)


def number(value: Any, digits: int = 1) -> str:
    return f"{float(value):.{digits}f}".replace("-", "−")


def side(latitude: Any) -> str:
    return f"{abs(float(latitude)):.0f}° {'N' if float(latitude) > 0 else 'S'}"


def area_mean(field: xr.DataArray) -> xr.DataArray:
    return global_mean(field).mean("time")


def excerpt(ds: xr.Dataset) -> str:
    import zarr

    folder = Path(appa.data.planet.__file__).parents[1] / "bundled"
    store = zarr.open_group(zarr.storage.ZipStore(folder / "planet.zarr.zip", mode="r"), mode="r")
    shares = []
    for name in VARIABLES:
        step = np.atleast_1d(store[name].attrs["step"])
        deviation = ds[name].std(("time", "latitude", "longitude")).values
        shares += (step / np.sqrt(12) / np.atleast_1d(deviation)).tolist()
    first, last = (str(t)[:13] for t in ds["time"].values[[0, -1]].astype("datetime64[h]"))
    stats = appa.data.planet.statistics().attrs
    size = {p.name: p.stat().st_size / 1e6 for p in folder.glob("planet*")}
    return table(
        "what|is",
        [
            f"hours|{ds.sizes['time']}, {first} to {last}",
            f"channels|{len(channels())}",
            f"grid|Gaussian, {ds.sizes['latitude']}×{ds.sizes['longitude']}",
            f"rounding error, rms, by channel|{100 * min(shares):.2f}–{100 * max(shares):.2f} % "
            "of the standard deviation",
            f"size of the excerpt|{size['planet.zarr.zip']:.1f} MB",
            f"size of its climatology|{size['planet-climatology.zarr.zip']:.1f} MB",
            f"statistics and climatology over|{stats['hours']:,} states, "
            f"{stats['first_time']} to {stats['last_time']}",
        ],
    )


def climate(ds: xr.Dataset, months: xr.Dataset) -> str:
    annual = months.mean("month")
    land = ds["land_sea_mask"] >= 0.5
    rain = 24e3 * annual["total_precipitation"]
    t, t2m = months["temperature"], annual["2m_temperature"]
    now = ds.mean("time")
    speed = (ds["10m_u_component_of_wind"] ** 2 + ds["10m_v_component_of_wind"] ** 2) ** 0.5
    tropics, north, south = slice(10, -10), slice(90, 75), slice(-75, -90)
    two = daily_harmonic(ds["mean_sea_level_pressure"], 2)["wave"].mean("longitude")
    tide = two.sel(latitude=tropics).mean("latitude").item()

    def both(name: str, scale: float = 1.0, digits: int = 1) -> str:
        pair = (global_mean(d[name]) * scale for d in (annual, now))
        return "|".join(number(value, digits) for value in pair)

    def jet(month: int, hemisphere: str) -> str:
        found = jets(months["u_component_of_wind"].sel(month=month, level=200))
        found = found.sel(hemisphere=hemisphere)
        return f"{number(found['speed'])} at {side(found['latitude_of_jet'])}"

    def cap(month: int, level: int, where: slice) -> str:
        return number(global_part(t.sel(month=month, level=level), where))

    def global_part(field: xr.DataArray, where: slice) -> xr.DataArray:
        inside = field["latitude"].sel(latitude=where)
        return global_mean(field.where(field["latitude"].isin(inside)))

    tropic = {
        p: number(global_part(annual["temperature"].sel(level=p), tropics)) for p in (50, 100)
    }
    rows = [
        f"2 m temperature, K|{both('2m_temperature')}|287.0–287.5",
        f"… over land, over sea|{number(global_mean(t2m.where(land)))}, "
        f"{number(global_mean(t2m.where(~land)))}|·|281.6, 289.2",
        f"sea-level pressure, hPa|{both('mean_sea_level_pressure', 0.01)}|1011",
        f"precipitation, mm/day|{both('total_precipitation', 24e3, 2)}|2.7 (GPCP), 2.9 (ERA5)",
        f"… over land, over sea|{number(global_mean(rain.where(land)), 2)}, "
        f"{number(global_mean(rain.where(~land)), 2)}|·|2.3, 2.9 (GPCP)",
        f"jet at 200 hPa, January, north, m/s|{jet(1, 'north')}|·|40 at 31° N",
        f"… January, south|{jet(1, 'south')}|·|30 at 46° S",
        f"… July, north|{jet(7, 'north')}|·|20 at 44° N",
        f"… July, south|{jet(7, 'south')}|·|40 at 30° S",
        f"temperature at 100 hPa, 10° S–10° N, K|{tropic[100]}|·|195",
        f"… at 50 hPa, 10° S–10° N|{tropic[50]}|·|207",
        f"… at 50 hPa, 75–90° N, January|{cap(1, 50, north)}|·|205",
        f"… at 50 hPa, 75–90° S, July|{cap(7, 50, south)}|·|187",
        f"10 m wind speed over sea, m/s|·|{number(area_mean(speed.where(~land)))}|6.6",
        f"… over land|·|{number(area_mean(speed.where(land)))}|3.3",
        f"semidiurnal tide of pressure, 10° S–10° N, hPa|·|{number(abs(tide) / 100, 2)}|1.1–1.2",
        "… its maximum, local time|·|"
        f"{number((-np.degrees(np.angle(tide)) / 30) % 12)} and 12 hours later|9.7",
    ]
    return table("global mean unless it says otherwise|climatology|excerpt|Earth, about", rows)


def hydrostatic(ds: xr.Dataset) -> str:
    residual = hydrostatic_residual(ds, PLANET)
    fields = (
        area_mean(thickness(ds)),
        area_mean(residual),
        area_mean(residual**2) ** 0.5,
        area_mean(hydrostatic_error(ds, PLANET) ** 2) ** 0.5,
    )
    noise = figures.rounding(ds)
    rows = []
    for i in range(residual.sizes["layer"]):
        depth, bias, rms, estimate = (float(f[i]) for f in fields)
        name = f"{int(residual['top'][i])}–{int(residual['bottom'][i])}"
        rows.append(f"{name}|{depth:.0f}|{number(bias, 2)}|{rms:.1f}|{noise[i]:.1f}|{estimate:.1f}")
    header = "layer, hPa|thickness, m|mean residual, m|its rms, m|of rounding, m|of curvature, m"
    return table(header, rows)


def geostrophic(ds: xr.Dataset) -> str:
    balance = geostrophic_balance(ds, PLANET)
    rows = []
    for level in balance["level"].values:
        at = balance.sel(level=level)
        rows.append(
            f"{level}|{number(at['correlation'], 3)}|{number(at['speed_correlation'], 3)}|"
            f"{number(at['ratio'], 3)}|{number(at['angle'])} ± {number(at['angle_spread'])}"
        )
    header = (
        "level, hPa|correlation of vectors|of speeds|speed, actual / geostrophic|angle, degrees"
    )
    return table(header, rows)


def humidity(ds: xr.Dataset) -> str:
    q = ds["specific_humidity"].astype(np.float64)
    relative = relative_humidity(ds, "speedy")
    saturated = saturation_humidity(ds["temperature"], 100.0 * ds["level"], "speedy")
    beyond = 100 * area_mean((q - saturated).clip(min=0)) / area_mean(q)
    mean, over = 100 * area_mean(relative), 100 * area_mean((relative > 1.05).astype(np.float64))
    rows = [
        f"{level}|{1e3 * float(area_mean(q.sel(level=level))):.3g}|"
        f"{number(mean.sel(level=level), 0)}|{number(over.sel(level=level))}|"
        f"{number(beyond.sel(level=level), 2)}"
        for level in ds["level"].values
    ]
    header = "level, hPa|humidity, g/kg|relative, %|area above 105 %, %|vapour beyond saturation, %"
    return table(header, rows)


def day(ds: xr.Dataset) -> str:
    return table("latitudes|land: range, K|maximum, h|minimum, h|sea: range, K", day_rows(ds))


def day_rows(ds: xr.Dataset) -> list[str]:
    cycle = by_local_hour(ds["2m_temperature"])
    land = ds["land_sea_mask"] >= 0.5
    rows = []
    for name, (low, high) in BANDS.items():
        here = (ds["latitude"] >= low) & (ds["latitude"] < high)
        inland, sea = (global_mean(cycle.where(here & m)) for m in (land, ~land))
        rows.append(
            f"{name}|{number(inland.max() - inland.min())}|{int(inland.idxmax())}|"
            f"{int(inland.idxmin())}|{number(sea.max() - sea.min())}"
        )
    return rows


def memory(ds: xr.Dataset) -> str:
    rows = []
    for channel in channels():
        if channel.name not in ("t2m", "msl", "u10", "tp", "z500", "t850", "u250", "q700"):
            continue
        field = ds[channel.variable]
        field = field if channel.level is None else field.sel(level=channel.level)
        anomaly = (field - field.mean("time")).astype(np.float64)
        parts = []
        for lag in (1, 2, 6, 24):
            later = anomaly.isel(time=slice(lag, None))
            product = later * anomaly.isel(time=slice(-lag)).values
            parts.append(number(area_mean(product) / area_mean(anomaly**2), 2))
        rows.append(f"{channel.name}|" + "|".join(parts))
    return table("channel|1 h|2 h|6 h|24 h", rows)


def sun() -> str:
    r"""Five days in July after forty from rest, with and without sunrise and sunset."""
    import jax

    from appa.data.planet.simulation import GRID, Circulation, Plan

    rows = []
    for diurnal in (True, False):
        circulation = Circulation(diurnal)
        start = np.array(["2021-06-01T00"], "datetime64[h]")
        run = circulation.start(Plan().seeds(), start)
        for _ in range(8):
            run = jax.block_until_ready(circulation.spin_up(run, 5))
        _, fields = circulation.advance(run, 5)
        time = start[0] + np.arange(40 * 24, 45 * 24).astype("timedelta64[h]")
        coords = {"time": time.astype("datetime64[ns]")}
        coords |= {"latitude": GRID.latitude, "longitude": GRID.longitude}
        names = ("2m_temperature", "total_precipitation", "mean_sea_level_pressure")
        data = {n: (("time", "latitude", "longitude"), np.asarray(fields[n])[0]) for n in names}
        ds = xr.Dataset(data, coords)
        mask = circulation.static()["land_sea_mask"]
        ds["land_sea_mask"] = (("latitude", "longitude"), mask)
        wave = daily_harmonic(ds["mean_sea_level_pressure"], 2)["wave"].mean("longitude")
        tide = abs(wave.sel(latitude=slice(10, -10)).mean("latitude")) / 100
        ranges = [row.split("|") for row in day_rows(ds)]
        rows.append(
            ("rises and sets" if diurnal else "daily mean (`--no-diurnal`)")
            + f"|{', '.join(r[1] for r in ranges)}|{', '.join(r[4] for r in ranges)}|"
            f"{number(tide, 2)}|{number(area_mean(ds['2m_temperature']), 2)}|"
            f"{number(24e3 * area_mean(ds['total_precipitation']), 2)}"
        )
    header = "sun|land: range, K|sea: range, K|tide, hPa|2 m temperature, K|precipitation, mm/day"
    return table(header, rows)


if __name__ == "__main__":
    main()
