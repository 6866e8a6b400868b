r"""Finds what is wrong with a store, in one reading.

=====================  =============================================================================
kind                   what was found
=====================  =============================================================================
missing hours          a gap inside a trajectory
repeated hours         a time that appears twice
unsorted hours         time runs backwards inside a trajectory
off the hour           a time that is no whole hour
missing variable       one that was expected
missing level          one that was expected, or the hole in a usual set of levels
unrecognised           a variable under another name than WeatherBench2's, which is not read
grid                   another grid than expected
damaged                hours that cannot be read
undefined              NaN, except SST over land; SST with another coast than in most hours
infinite               an infinity
units                  values that are plausible in a unit often mistaken for the right one
range                  values, or a global mean, that no atmosphere of this planet has
flipped latitude       north and south exchanged (:mod:`appa.data.orientation`)
stuck                  a field identical to the hour before
=====================  =============================================================================
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataError, StoreError
from .canonical import unrecognised
from .evidence import Evidence, Run, Scan, join, runs
from .grids import Grid
from .orientation import Mirror, Reference, flipped
from .reduction import SPACE, cause, load, reduce_blocks, time_blocks
from .timeline import Finding, check_times
from .variables import LEVELS, STATIC, VARIABLES, Channel, plausible, plausible_mean

if TYPE_CHECKING:
    import xarray as xr

    from ..config import Config

__all__ = ["Finding", "check"]

# fmt: off
LEVEL_SETS: tuple[tuple[int, ...], ...] = (
    LEVELS,
    (1, 2, 3, 5, 7, 10, 20, 30, 50, 70, 100, 125, 150, 175, 200, 225, 250, 300, 350, 400, 450, 500,
     550, 600, 650, 700, 750, 775, 800, 825, 850, 875, 900, 925, 950, 975, 1000),
)
# fmt: on
SEVERAL = 4  # runs of the same fault listed one by one; more become one line
SST = "sea_surface_temperature"


def check(
    ds: xr.Dataset,
    *,
    climatology: xr.Dataset | None = None,
    hourly: int = 1,
    expect: Config | None = None,
    scheduler: Any = None,
    workers: int | None = None,
) -> list[Finding]:
    r"""Checks a store.

    Arguments:
        ds: A canonical dataset.
        climatology: The climatology of this atmosphere, against which flipped fields are found
            best, from :func:`appa.data.climatology.fit`. By default the bundled planet's, of
            which only fields are used that look alike on Earth. A field without a pattern of its
            own (meridional wind, precipitation) that is flipped in the whole store is not found.
        hourly: Hours between states.
        expect: A configuration whose variables, levels and grid the store is to have.
        scheduler: A Dask client or scheduler address; by default, threads of this process.
        workers: The number of threads.

    Returns:
        What was found; nothing if the store is clean.

    Example:
        >>> for finding in check(open_store("era5.zarr")):
        ...     print(finding.kind, finding.variable, finding.when, finding.found)
    """
    names = [str(name) for name in ds.data_vars if name in VARIABLES]
    if "member" in ds.dims:
        raise DataError("the dataset has several members: check one at a time, ds.isel(member=0)")
    if not names or not ds.sizes.get("time", 0):
        raise DataError(
            f"there is nothing to check: the dataset has {len(names)} known variables and "
            f"{ds.sizes.get('time', 0)} hours; is it the right store?"
        )
    times = ds["time"].values
    trajectory = ds["trajectory"].values if "trajectory" in ds.coords else np.zeros(len(times))
    between = int(ds.attrs.get("hours_between_stretches", 0))
    findings = check_times(times, trajectory, hourly, between) + _inventory(ds, names, expect)

    channels = [
        Channel(name, level)
        for name in names
        for level in ([None] if VARIABLES[name].surface else ds["level"].values.tolist())
    ]
    mirror = Mirror(ds["latitude"].values, ds["longitude"].values)
    reference = _reference(climatology, mirror, channels) if mirror.possible else None
    land = _land(ds) if SST in names else None
    evidence = reduce_blocks(
        Scan(ds[names], channels, mirror, reference, land),
        join,
        time_blocks(ds[names], longest=48),
        scheduler=scheduler,
        workers=workers,
        description="checking",
    )
    found = _judge(evidence, channels, times, trajectory, land is not None)
    findings += _static(ds, mirror, land, found, channels)
    return findings + _describe(found, channels, times, mirror.size)


def _inventory(ds: xr.Dataset, names: list[str], expect: Config | None) -> list[Finding]:
    r"""Missing variables and levels, and another grid."""
    findings = []
    levels = ds["level"].values.tolist() if "level" in ds.coords else []
    if expect is not None:
        wanted = expect.data
        for name in (*wanted.surface, *wanted.atmospheric):
            if name not in names:
                advice = "fetch the store again with it, or expect it no more"
                findings.append(
                    Finding("missing variable", name, found="not in the store", advice=advice)
                )
        missing = set(wanted.levels) - set(levels) if wanted.atmospheric else set()
        findings += _grid(ds, expect.grid)
        other = "or expect them no more"
    else:
        other = "if they were meant to be there"
        # Most of a usual set and nothing else: the rest was meant to be there.
        usual = [s for s in LEVEL_SETS if set(levels) <= set(s) and len(levels) > 0.7 * len(s)]
        missing = set(usual[0]) - set(levels) if usual else set()
    if missing:
        text = f"no {', '.join(map(str, sorted(missing)))} hPa among {len(levels)} levels"
        level = ", ".join(map(str, sorted(missing)))
        advice = f"fetch the store again with them, {other}"
        findings.append(Finding("missing level", "all on levels", level, found=text, advice=advice))
    for short, name in unrecognised(ds).items():
        text = f"{short} was not recognised; WeatherBench2's name is {name}"
        advice = f"rename it: ds.rename({{{short!r}: {name!r}}})"
        findings.append(Finding("unrecognised", short, found=text, advice=advice))
    return findings


def _grid(ds: xr.Dataset, wanted: Grid) -> list[Finding]:
    shape = f"{ds.sizes['latitude']}×{ds.sizes['longitude']}"
    expected = f"{wanted.latitudes}×{wanted.longitudes}"
    try:
        grid = Grid.from_coordinates(ds["latitude"].values, ds["longitude"].values)
    except DataError:
        text = f"{shape} points of no known grid, expected {wanted.kind} {expected}"
    else:
        if grid == wanted:
            return []
        if grid.kind != wanted.kind:
            shape, expected = f"{grid.kind} {shape}", f"{wanted.kind} {expected}"
        text = f"{shape}, expected {expected}"
    size = f"{wanted.kind}:{wanted.latitudes}x{wanted.longitudes}"
    return [Finding("grid", found=text, advice=f"fetch the store again with --grid {size}")]


def _reference(
    climatology: xr.Dataset | None, mirror: Mirror, channels: Sequence[Channel]
) -> Reference:
    if climatology is not None:
        return Reference(climatology, mirror, channels, own=True)
    from .planet import climatology as bundled

    return Reference(bundled(), mirror, channels, own=False)


def _land(ds: xr.Dataset) -> np.ndarray | None:
    r"""Where SST is undefined in most of some hours, with shape :math:`(H, W)`."""
    sst = ds[SST].transpose("time", *SPACE[1:])
    hours = np.unique(np.linspace(0, ds.sizes["time"] - 1, 25).astype(int))
    undefined = []
    for t in hours:
        with contextlib.suppress(StoreError):  # a damaged hour is found when all are read
            undefined.append(np.isnan(load(sst.isel(time=int(t)))))
    undefined = [u for u in undefined if not u.all()]
    return np.mean(undefined, axis=0) > 0.5 if undefined else None


def _judge(
    evidence: Evidence,
    channels: list[Channel],
    times: np.ndarray,
    trajectory: np.ndarray,
    coast: bool,
) -> list[Run]:
    r"""Everything wrong with the fields."""
    found = list(evidence.runs)
    hours = np.full(len(times), np.inf)
    same = trajectory[1:] == trajectory[:-1]
    hours[1:][same] = np.diff(times)[same] / np.timedelta64(1, "h")

    flips = flipped(channels, evidence.r, evidence.change, evidence.pattern, hours)
    names = [channel.variable for channel in channels]
    if coast:
        c = names.index(SST)
        # What is usual may itself be flipped; then a coast that fits it mirrored is the right one.
        as_is, mirrored = evidence.coast.T if flips[:, c].mean() <= 0.5 else evidence.coast.T[::-1]
        flips[:, c] |= (as_is > 0) & (mirrored == 0)
        points = np.where(flips[:, c], mirrored, as_is)
        found += [
            Run("undefined", c, int(t), int(t) + 1, points=int(points[t]))
            for t in np.flatnonzero(points)
        ]
    # SST is often given once a day; the same hour twice is a repeated hour.
    still = evidence.still & (hours != 0)[:, None] & np.isfinite(hours)[:, None]
    still &= np.array(names) != SST
    for kind, flags in (("flipped latitude", flips), ("stuck", still)):
        found += [
            Run(kind, c, start, stop)
            for c in np.flatnonzero(flags.any(0)).tolist()
            for start, stop in _spans(flags[:, c])
        ]
    return runs(found)


def _spans(flags: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def _static(
    ds: xr.Dataset, mirror: Mirror, land: np.ndarray | None, found: list[Run], channels: list
) -> list[Finding]:
    r"""Faults of fields without time, and of SST against the land mask."""
    findings = []
    limits = {"land_sea_mask": (-1e-6, 1 + 1e-6), "geopotential_at_surface": (-6e3, 9e4)}
    for name in STATIC:
        if name not in ds:
            continue
        again = "fetch or write the field again"
        try:
            x = load(ds[name].transpose("latitude", "longitude"))
        except StoreError as error:
            text = f"cannot be read ({cause(error.__cause__ or error)})"
            findings.append(Finding("damaged", name, found=text, advice=again))
            continue
        low, high = limits[name]
        if bad := int((~np.isfinite(x)).sum()):
            text = f"at {bad} of {x.size} points"
            findings.append(Finding("undefined", name, found=text, advice=again))
        elif x.min() < low or x.max() > high:
            text = f"{x.min():.5g} to {x.max():.5g}, expected {low:.5g} to {high:.5g}"
            findings.append(Finding("range", name, found=text, advice=again))
        if name != "land_sea_mask" or land is None:
            continue
        flips = [run for run in found if run.kind == "flipped latitude"]
        if sum(r.stop - r.start for r in flips if channels[r.channel].variable == SST) * 2 > len(
            ds["time"]
        ):
            land = land[::-1]
        # Coasts differ between masks: what is sea all around must have a temperature.
        near = np.stack([np.roll(x, (j, i), (0, 1)) for j in (-1, 0, 1) for i in (-1, 0, 1)])
        open_sea = (near == 0).all(0)
        open_sea[[0, -1]] = False
        if bad := int((land & open_sea).sum()):
            text = f"NaN at {bad} points that are sea in land_sea_mask"
            findings.append(Finding("undefined", SST, found=text, advice="compare both fields"))
    return findings


def _describe(
    found: list[Run], channels: list[Channel], times: np.ndarray, size: int
) -> list[Finding]:
    r"""Merges runs over channels, then over time where there are too many to list."""
    same: dict[tuple, list[Run]] = defaultdict(list)
    for run in found:
        same[run.kind, run.detail, run.start, run.stop].append(run)
    grouped: dict[tuple, list[list[Run]]] = defaultdict(list)
    for (kind, detail, *_), group in same.items():
        covered = {run.channel for run in group}
        # SST is never called stuck, so all others are all there are.
        able = {c for c, ch in enumerate(channels) if kind != "stuck" or ch.variable != SST}
        if covered == able and len({channels[c].variable for c in able}) > 1:
            grouped[kind, detail, "all"].append(group)
            continue
        for name in dict.fromkeys(channels[run.channel].variable for run in group):
            mine = [run for run in group if channels[run.channel].variable == name]
            grouped[kind, detail, name].append(mine)

    findings = []
    for (kind, detail, name), groups in grouped.items():
        groups.sort(key=lambda group: group[0].start)
        batches = [groups] if len(groups) > SEVERAL else [[group] for group in groups]
        for batch in batches:
            flat = [run for group in batch for run in group]
            hours = np.zeros(len(times), bool)
            for run in flat:
                hours[run.start : run.stop] = True
            levels = _levels({channels[run.channel] for run in flat}, channels, name)
            text, advice = _words(kind, detail, flat, channels, size)
            when, count = times[hours], int(hours.sum())
            span = (when.min(), when.max(), count, len(batch))
            findings.append(Finding(kind, name, levels, *span, text, advice))
    return sorted(findings, key=lambda f: (f.kind, f.variable, f.start))


def _levels(mine: set[Channel], channels: Iterable[Channel], name: str) -> str:
    if name == "all" or VARIABLES[name].surface:
        return ""
    every = [ch.level for ch in channels if ch.variable == name]
    levels = sorted(ch.level for ch in mine if ch.level is not None)
    if len(levels) == len(every) > 1:
        return "all"
    if len(levels) > 6:
        return f"{len(levels)} from {levels[0]} to {levels[-1]}"
    return ", ".join(map(str, levels))


def _words(
    kind: str, detail: str, flat: list[Run], channels: list[Channel], size: int
) -> tuple[str, str]:
    r"""What was found, and what to do about it."""
    again = "fetch or write these hours again"
    points = max(run.points for run in flat)
    if kind == "damaged":
        return f"cannot be read ({flat[0].note})", again
    if kind == "flipped latitude":
        return "north and south are exchanged", f"reverse latitude in these hours, or {again}"
    if kind == "stuck":
        return "the same as the hour before, at every point", again
    if kind in ("undefined", "infinite"):
        what = "NaN" if kind == "undefined" else "infinite"
        return f"{what} at up to {points} of {size} points", again

    worst = min(flat, key=lambda run: run.low)
    channel = channels[worst.channel]
    var = VARIABLES[channel.variable]
    low, high = min(run.low for run in flat), max(run.high for run in flat)
    if kind == "units":
        _, scale, offset = next(unit for unit in var.mistaken if unit[0] == detail)
        step = f"multiply by {scale:g}" if scale != 1 else f"add {offset:g}"
        return f"{low:.4g} to {high:.4g}: in {detail}, not {var.units}", step
    limits = (plausible_mean if detail else plausible)(channel.variable, channel.level)
    where = f" at {channel.level} hPa" if channel.level is not None else ""
    what = "a global mean of " if detail else f"up to {points} points from "
    return (
        f"{what}{low:.4g} to {high:.4g} {var.units}",
        f"expected {limits[0]:.4g} to {limits[1]:.4g}{where}; {again}",
    )
