r"""Optimal interpolation in space and time: all hours of a window from all of its observations.

Analyses are draws of the Gaussian posterior of :mod:`appa.evaluation.conditioning`, with a
covariance estimated from training data (:mod:`appa.evaluation.anomalies`). A few settings are
tuned, one after the other, for the least CRPS on dates other than those scored: settings carry the
periods they were tuned on, and these are refused (:mod:`appa.evaluation.tuning`).
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr

from .. import __version__
from ..data.clock import as_datetime64
from ..data.netcdf import CONVENTIONS
from ..data.stores import open_store
from ..data.variables import LEVELS
from ..errors import ConfigError, DataError, StoreError, nearest
from ..observations.checks import describe, join
from ..observations.collection import Observations
from ..observations.operators import HourOperator, compile_observations
from ..observations.reading import read_observations
from ..progress import progress
from . import tuning
from .conditioning import ITERATIONS, TOLERANCE, Interpolation, Observed
from .covariances import Covariance, Prior
from .ensembles import averages

__all__ = ["GRID", "Settings", "interpolate", "tune"]

HOUR = np.timedelta64(3600, "s")
TRAINED = "the covariance was estimated from"
REMEDY = "tune them with: appa baseline tune"
KINDS: dict[str, type] = {"modes": int, "order": int, "localization": float, "error": float}
NONNEGATIVE = ("total_precipitation", "specific_humidity")
#: What tuning tries, one setting after the other, beginning with the first value of each.
GRID: dict[str, Sequence[Any]] = {
    "localization": (25.0, 15.0, 40.0, None),
    "modes": (64, 96, 32, 16),
    "order": (6, 12, 3, 1),
    "error": (1.0, 0.7, 1.5, 2.5),
}


@dataclass(frozen=True)
class Settings(tuning.Tuned):
    r"""What is tuned, on other dates than are scored.

    Arguments:
        modes, order, localization: As of :class:`~appa.evaluation.covariances.Prior`.
        error: The factor :math:`s` of all observation errors.
        tuned: The periods tuned on, see :mod:`appa.evaluation.tuning`.
    """

    kinds, remedy = KINDS, REMEDY

    modes: int | None = None
    order: int | None = None
    localization: float | None = 25.0
    error: float = 1.0
    tuned: tuning.Periods = ()

    @classmethod
    def load(cls, path: str | Path) -> Settings:
        r"""Reads them."""
        found = super().load(path)
        if found.error is None:
            raise ConfigError(f"{str(path)!r} has no error; {REMEDY}")
        return found


def interpolate(
    covariance: Covariance,
    observations: Any,
    start: Any,
    hours: int = 24,
    *,
    members: int = 10,
    seed: int = 0,
    settings: Settings | None = None,
    out: str | Path | None = None,
    batch: int = 8,
    iterations: int = ITERATIONS,
    tolerance: float = TOLERANCE,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> xr.Dataset:
    r"""Draws states consistent with observations by optimal interpolation.

    Arguments:
        covariance: The covariance.
        observations: What :func:`appa.read_observations` takes; :py:`None` for none.
        start: The first hour.
        hours: The number of hours, which may be more than the covariance has lags.
        members: The number of members; 0 for the posterior's mean alone, without members.
        seed: The seed. A member depends on the seed and its number, not on the other members.
        settings: What was tuned; hours of a trajectory it was tuned on are refused.
        out: Where to write the ensemble, a `.zarr` or `.nc` that must not exist yet.
        batch: The number of members at once.
        iterations, tolerance: See :class:`Interpolation`.
        device, dtype: Where and how precisely it is computed.

    Returns:
        A dataset with dimensions `(member, time, level, latitude, longitude)`.

    Example:
        >>> cov = Covariance.load("cov.nc")
        >>> oi = interpolate(cov, ["obs.parquet", "obs.swath.nc"], "2021-03-24T00", 24)
        >>> appa.evaluate(oi, "planet")
    """
    if out is not None:
        _free(Path(out))
    settings = settings or Settings()
    times = _hours(start, hours)
    settings.untouched(times)
    if trained := covariance.seen(times):
        warnings.warn(
            f"{TRAINED} {trained}, which {_span(times)} is within: scores of it would say too much",
            stacklevel=2,
        )
    if members < 0 or batch < 1:
        raise DataError(f"found members={members} and batch={batch}; give 0 and 1 or more")
    solver, used = posterior(covariance, observations, times, settings, iterations, tolerance,
                             device, dtype, members)  # fmt: skip
    if members:
        seeds = [_seed(seed, member) for member in range(members)]
        parts = []
        with progress(members, "interpolating", "members") as bar:
            for k in range(0, members, batch):
                parts.append(solver.draw(seeds[k : k + batch]).cpu())
                bar.advance(len(parts[-1]))
        x = torch.cat(parts)
    else:
        x = solver.mean().cpu()
    ds = covariance.standardizer.to_dataset(x.float(), times, covariance.grid)
    for name in NONNEGATIVE:
        if name in ds:
            ds[name] = ds[name].clip(min=0, keep_attrs=True)
    ds.attrs = {
        "Conventions": CONVENTIONS,
        "title": "optimal interpolation of the global atmosphere",
        "source": f"appa {__version__}, torch {torch.__version__}",
        "task": "optimal interpolation",
        "seed": int(seed),
        "settings": json.dumps(asdict(settings)),
        "covariance": json.dumps({k: str(v) for k, v in covariance.dataset.attrs.items()}),
        "iterations": solver.taken,
        "residual": solver.residual,
    }
    if used is not None:
        ds.attrs["observations_digest"] = used.digest()
    if out is not None:
        _write(ds, Path(out))
    return ds


def posterior(
    covariance: Covariance,
    observations: Any,
    times: np.ndarray,
    settings: Settings,
    iterations: int,
    tolerance: float,
    device: str | torch.device,
    dtype: torch.dtype,
    members: int = 1,
) -> tuple[Interpolation, Observations | None]:
    r"""The posterior of hours given observations, and those of them that were used."""
    prior = Prior(
        covariance,
        times,
        modes=settings.modes,
        order=settings.order,
        localization=settings.localization,
        device=device,
        dtype=dtype,
    )
    operators: Sequence[HourOperator | None] = ()
    used = None
    if observations is not None:
        levels = covariance.standardizer.levels or LEVELS
        used = read_observations(observations, levels=levels).between(times[0], len(times))
        operators = compile_observations(used, covariance.space, times)
        if not any(op is not None for op in operators):
            raise DataError(
                f"no observation of {_span(times)} is left that can be compared with states:\n"
                f"{operators.excluded.to_string(index=False)}"
            )
        left_out = operators.excluded
        if not isinstance(observations, Observations):
            left_out = join([used.excluded, left_out])
        if len(left_out):
            warnings.warn(f"observations are left out:\n{describe(left_out)}", stacklevel=3)
    observed = Observed(operators, prior.mean, settings.error)
    return Interpolation(prior, observed, iterations, tolerance, members), used


def tune(
    covariance: Covariance,
    cases: Sequence[tuple[Any, Any]],
    truth: Any,
    *,
    hours: int = 24,
    grid: Mapping[str, Sequence[Any]] | None = None,
    members: int = 8,
    seed: int = 0,
    **options: Any,
) -> tuple[Settings, pd.DataFrame]:
    r"""Chooses settings that minimise the CRPS, one after the other.

    Arguments:
        covariance: The covariance.
        cases: Observations and first hour of each window, of dates that are not scored later.
        truth: The truth, what :func:`appa.open_store` takes.
        hours: The number of hours of a window.
        grid: The values to try of each of :class:`Settings`, by default :data:`GRID`; values that
            the covariance does not allow are left out.
        members, seed, options: As of :func:`interpolate`.

    Returns:
        The settings, and a table of all that was tried with `crps`, the mean over channels of the
        CRPS over the deviation of anomalies, and `ratio`, the root of the mean over channels of
        variance over squared error.
    """
    if not cases:
        raise DataError("there is nothing to tune on; give one or more windows of other dates")
    truth = open_store(truth)
    grid = dict(GRID if grid is None else grid)
    most = {"modes": covariance.modes, "order": covariance.lags}
    for name, values in grid.items():
        if name not in ("modes", "order", "localization", "error"):
            raise ConfigError(f"{name!r} cannot be tuned{nearest(name, list(GRID))}")
        if name == "error" and not all(v is not None and v > 0 for v in values):
            raise ConfigError(f"found errors times {values} to try; give factors above 0, e.g. 1")
        kept = [v for v in values if v is None or v <= most.get(name, np.inf)]
        grid[name] = kept or [None]
    deviation = np.sqrt((covariance.dataset["variance"].values[0]
                         * covariance.grid.weights[:, None]).mean((-2, -1)))  # fmt: skip
    deviation = pd.Series(
        deviation * covariance.dataset["std"].values, covariance.dataset["channel"].values
    )
    seen: dict[Settings, tuple[float, float]] = {}
    tuned = tuning.periods(truth, (_hours(start, hours) for _, start in cases))

    def score(settings: Settings) -> float:
        if settings not in seen:
            found = []
            for observations, start in cases:
                with warnings.catch_warnings():  # of these dates no more than settings is told
                    warnings.filterwarnings("ignore", message=TRAINED)
                    ds = interpolate(covariance, observations, start, hours, members=members,
                                     seed=seed, settings=settings, **options)  # fmt: skip
                found.append(averages(ds, truth))
            error, spread, crps = (
                np.concatenate([part[name].values[0] for part in found]).mean(axis=0)
                for name in ("squared_error", "variance", "crps")
            )
            sigma = deviation.reindex(found[0]["channel"].values).to_numpy()
            varies = sigma > 0
            ratio = ((members + 1) / members * spread / error)[varies].mean()
            seen[settings] = float((crps / sigma)[varies].mean()), float(np.sqrt(ratio))
        return seen[settings][0]

    best = Settings(**{name: values[0] for name, values in grid.items()})
    with progress(sum(len(v) for v in grid.values()), "tuning", "settings") as bar:
        for name, values in grid.items():
            tried = []
            for value in values:
                tried.append(score(replace(best, **{name: value})))
                bar.advance()
            best = replace(best, **{name: values[int(np.argmin(tried))]})
    table = pd.DataFrame(
        [{**{n: getattr(s, n) for n in GRID}, "crps": c, "ratio": r} for s, (c, r) in seen.items()]
    )
    return replace(best, tuned=tuned), table


# ---------------------------------------------------------------- hours, seeds and files


def _hours(start: Any, hours: int) -> np.ndarray:
    first = as_datetime64(start)
    if first.ndim or first != first.astype("datetime64[h]"):
        raise DataError(f"found start {start}, expected one whole hour, e.g. 2021-03-21T00")
    if hours < 1:
        raise DataError(f"a period has 1 hour or more, found hours={hours}")
    return first + HOUR * np.arange(hours)


def _span(times: np.ndarray) -> str:
    first, last = (str(t.astype("datetime64[h]")) for t in (times[0], times[-1]))
    return f"{first} to {last}"


def _seed(seed: int, member: int) -> int:
    return int(np.random.SeedSequence((seed, member)).generate_state(1, np.uint64)[0] >> 1)


def _free(path: Path) -> None:
    if path.suffix not in (".zarr", ".nc"):
        raise StoreError(f"found {str(path)!r}; name a .zarr or a .nc")
    if path.exists():
        raise StoreError(f"{path} exists already; remove it or choose another name")


def _write(ds: xr.Dataset, path: Path) -> None:
    r"""Writes a dataset, which exists complete or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    time = {"time": {"units": "hours since 1900-01-01", "dtype": "int64"}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".nc":
            ds.to_netcdf(partial, encoding=time)
        else:
            chunks = {n: {"chunks": (1, *v.shape[1:])} for n, v in ds.items() if v.ndim > 3}
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Consolidated metadata")
                ds.to_zarr(partial, zarr_format=3, consolidated=True, encoding=time | chunks)
        os.replace(partial, path)
    except OSError as error:
        raise StoreError(f"cannot write {path} ({error}); choose a folder with room") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True) if partial.is_dir() else partial.unlink(True)
