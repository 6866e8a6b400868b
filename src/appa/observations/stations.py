r"""Lists of stations: the packaged one, NOAA's, and the choice of some of them.

The packaged list holds airports, which is where much of the world's weather is reported from.
They crowd together where people do and are missing from the open ocean, as real stations are. A
user's list is NOAA's `isd-history.csv`, of the stations whose reports are in the Integrated
Surface Database, with the dates of each one's first and last.

A list is a table with `station` (a unique code), `latitude`, `longitude`, `elevation` in metres,
undefined where the list doesn't tell, and `major`: whether the place is known to report.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ..errors import DataError

if TYPE_CHECKING:
    from ..data.grids import Grid

__all__ = ["boxes", "places", "read_stations", "reporting", "share_of", "stations"]

FOOT = 0.3048  # m
PAPER_DENSITY = 0.01  # stations per grid point
LOWEST, HIGHEST = -450.0, 9000.0  # m: the Dead Sea's shore and Everest, roughly
LISTED = ("station", "latitude", "longitude", "elevation", "major")

COORDINATES = ("LAT", "LON", "ELEV(M)")
DATES = ("BEGIN", "END")
ISD = ("USAF", "WBAN", *COORDINATES, *DATES)


@cache
def places() -> pd.DataFrame:
    r"""The packaged list of airports.

    Returns:
        `station` (ICAO code or local identifier), `latitude`, `longitude`, `elevation` in metres
        and `major` (whether it has an IATA code, hence traffic and most often a weather report),
        some 28,000 rows. The list is :mod:`airportsdata`'s, MIT licensed.
    """

    import airportsdata

    rows = [
        (code, a["lat"], a["lon"], FOOT * a["elevation"], bool(a["iata"]))
        for code, a in airportsdata.load("ICAO").items()
    ]
    return pd.DataFrame(rows, columns=list(LISTED))


def read_stations(
    path: str | Path, active: tuple[ArrayLike, ArrayLike] | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    r"""Reads NOAA's list of stations, `isd-history.csv`.

    Arguments:
        path: The file, with columns `USAF`, `WBAN`, `LAT`, `LON`, `ELEV(M)`, `BEGIN`, `END` and
            any others.
        active: The first and last day (or hour) throughout which a station must have reported,
            or :py:`None` for stations of any time.

    Returns:
        The list, `station` being USAF's and WBAN's numbers joined by a hyphen, and a table of
        the rows left out: `reason`, `count`, `example`. Where several stations share a place,
        to a hundredth of a degree, the one that has reported longest remains. An elevation that
        is missing or impossible is undefined; such rows are kept, and counted.
    """

    raw = _read(Path(path))
    codes = _text(raw, "USAF") + "-" + _text(raw, "WBAN")
    # Signs are written, and a blank is no number; nor is what isn't one.
    latitude, longitude, elevation = (_numbers(raw, name) for name in COORDINATES)
    begin, end = (_dates(raw, name) for name in DATES)

    reasons = {
        "blank line": raw.isna().to_numpy().all(axis=1),
        "no code": np.isin(codes, ("-", "999999-99999")),
        "no coordinates": np.isnan(latitude) | np.isnan(longitude),
        # where the list has them for want of others; there is sea at that place
        "coordinates 0, 0": (latitude == 0) & (longitude == 0),
        "impossible coordinates": (np.abs(latitude) > 90) | (np.abs(longitude) > 180),
        "no dates": np.isnat(begin) | np.isnat(end) | (begin > end),
    }
    if active is not None:
        first, last = (np.datetime64(t, "D") for t in active)  # pyright: ignore
        period = f"{first}" if first == last else f"{first} to {last}"
        reasons[f"did not report throughout {period}"] = (begin > first) | (end < last)

    left, excluded = np.ones(len(raw), dtype=bool), []
    for reason, bad in reasons.items():
        excluded.append(_counted(reason, codes, left & bad))
        left &= ~bad
    longest = np.argsort(begin - end, kind="stable")  # undefined ones last
    for reason, key in (
        ("code of another", codes),
        ("place of another", _place(latitude, longitude)),
    ):
        order = longest[left[longest]]
        again = np.zeros_like(left)
        again[order[pd.Index(key[order]).duplicated()]] = True
        excluded.append(_counted(reason, codes, again))
        left &= ~again

    known = (elevation >= LOWEST) & (elevation <= HIGHEST)  # −999 and −999.9 stand for nothing
    excluded.append(_counted("no elevation (kept)", codes, left & ~known))
    excluded = [row for row in excluded if row["count"]]
    if not left.any():
        held = ~np.isnat(end)
        told = f"its last report is of {end[held].max()}; " if held.any() else ""
        counts = "\n".join(f"  {row['count']:>6}  {row['reason']}" for row in excluded)
        raise DataError(
            f"no station is left of the {len(raw)} rows of {str(path)!r} ({told}get a newer list, "
            f"or take stations of another time):\n{counts}"
        )

    listed = pd.DataFrame(
        {
            "station": codes[left],
            "latitude": latitude[left],
            "longitude": longitude[left],
            "elevation": np.where(known, elevation, np.nan)[left],
            "major": True,
        }
    )
    report = pd.DataFrame(excluded, columns=["reason", "count", "example"])
    return listed.iloc[np.argsort(codes[left])].reset_index(drop=True), report


def _read(path: Path) -> pd.DataFrame:
    try:
        raw = pd.read_csv(
            path, dtype=str, skip_blank_lines=False, encoding_errors="replace", na_values=[" "]
        )
    except (OSError, ValueError) as error:  # pandas' parser raises the latter
        raise DataError(
            f"{str(path)!r} cannot be read as a list of stations ({error}); give NOAA's "
            "isd-history.csv"
        ) from error
    raw.columns = [str(c).strip().upper() for c in raw.columns]
    missing = [c for c in ISD if c not in raw]
    if missing:
        raise DataError(
            f"{str(path)!r} lacks the columns {', '.join(missing)} and has "
            f"{', '.join(raw.columns[:12])}; give NOAA's isd-history.csv"
        )
    return raw


def _text(raw: pd.DataFrame, name: str) -> NDArray:
    return np.array([str(v).strip() for v in raw[name].fillna("")], dtype=np.str_)


def _numbers(raw: pd.DataFrame, name: str) -> NDArray:
    return np.asarray(pd.to_numeric(raw[name], errors="coerce"), dtype=np.float64)


def _dates(raw: pd.DataFrame, name: str) -> NDArray:
    dates = pd.to_datetime(pd.Series(_text(raw, name)), format="%Y%m%d", errors="coerce")
    return np.asarray(dates, dtype="datetime64[D]")


def _counted(reason: str, codes: NDArray, which: NDArray) -> dict[str, object]:
    rows = np.flatnonzero(which)
    example = f"{codes[rows[0]]} in line {rows[0] + 2}" if len(rows) else ""
    return {"reason": reason, "count": len(rows), "example": example}


def _place(latitude: ArrayLike, longitude: ArrayLike) -> NDArray:
    r"""One number a place, places being a hundredth of a degree apart, a kilometre."""
    row, column = (np.rint(100 * np.asarray(a, np.float64)) for a in (latitude, longitude))
    return row * 36_000 + column % 36_000


def boxes(grid: Grid, latitude: ArrayLike, longitude: ArrayLike) -> NDArray:
    r"""The grid point each place is nearest to in latitude and in longitude.

    Returns:
        The flat indices into :math:`H \cdot W`, with shape :math:`(N)`.
    """

    latitude, longitude = np.asarray(latitude, float), np.asarray(longitude, float)
    south = -grid.latitude  # ascending
    row = np.searchsorted((south[1:] + south[:-1]) / 2, -latitude)
    width = grid.shape[1]
    column = np.rint((longitude - grid.longitude[0]) * width / 360).astype(int) % width

    return row * width + column


def share_of(*words: object) -> float:
    r"""A number in [0, 1), the same for the same words on any machine, as if drawn for them."""
    text = ":".join(map(str, words)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") / 2**64


def stations(
    grid: Grid,
    number: int | None = None,
    *,
    seed: int = 0,
    listed: pd.DataFrame | None = None,
) -> pd.DataFrame:
    r"""Chooses stations among real places, at most one a grid box.

    Places are ranked by a hash of the seed and their code, those known to report first, and
    taken in that order where their box is still free. Regions keep the density they have in the
    list, and an update of the list leaves the rest of the choice as it was.

    Arguments:
        grid: The grid.
        number: How many, or :py:`None` for 1 % of the grid's points.
        seed: Selects the choice.
        listed: The list to choose from, by default :func:`places`.

    Returns:
        `station`, `latitude`, `longitude`, `elevation`, sorted by code.
    """

    if number is None:
        number = round(PAPER_DENSITY * grid.shape[0] * grid.shape[1])
    if number < 0:
        raise DataError(f"cannot choose {number} stations; give a number of 0 or more")

    whose = "the packaged places" if listed is None else f"the {len(listed)} stations of the list"
    listed = _checked(listed)
    rank = [
        hashlib.blake2b(f"{seed}:{code}".encode(), digest_size=8).digest()
        for code in listed["station"]
    ]
    ranked = listed.assign(
        rank=rank, box=boxes(grid, listed["latitude"], listed["longitude"])
    ).sort_values(["major", "rank"], ascending=[False, True])
    ranked = ranked.drop_duplicates("box")
    if number > len(ranked):
        raise DataError(
            f"{number} stations asked for, but {whose} fill only {len(ranked)} boxes "
            f"of a {grid.shape[0]}×{grid.shape[1]} grid; ask for at most {len(ranked)}"
        )

    return _sorted(ranked.head(number))


def reporting(listed: pd.DataFrame | None = None) -> pd.DataFrame:
    r"""Every place of a list that is known to report, at most one a hundredth of a degree.

    Arguments:
        listed: The list, by default :func:`places`: 7,882 airports, which stand in 28 % of the
            boxes of a 48×96 grid, often several in one.

    Returns:
        `station`, `latitude`, `longitude`, `elevation`, sorted by code.
    """

    listed = _checked(listed)
    major = listed.loc[listed["major"].to_numpy(bool)].sort_values(by=["station"])
    again = pd.Index(_place(major["latitude"], major["longitude"])).duplicated()
    return _sorted(major.loc[~again])


def _checked(listed: pd.DataFrame | None) -> pd.DataFrame:
    if listed is None:
        return places()
    missing = [c for c in LISTED[:-1] if c not in listed]
    if missing:
        raise DataError(
            f"the list of stations lacks {', '.join(missing)}; it needs {', '.join(LISTED[:-1])}"
        )
    return listed if "major" in listed else listed.assign(major=True)


def _sorted(chosen: pd.DataFrame) -> pd.DataFrame:
    chosen = chosen.sort_values(by=["station"], ignore_index=True)
    return chosen.loc[:, list(LISTED[:-1])]
