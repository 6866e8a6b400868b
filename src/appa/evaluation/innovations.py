r"""Innovations: what observations say of an ensemble that has not, or has, seen them.

With observations :math:`y = \mathcal{A}(x) + e` of the true state, whitened so that their errors
have variance 1, or else a given variance :math:`r`, an ensemble before them (background) and one
after (analysis), and :math:`\operatorname{E}` over truths and errors,

.. math::
    d_b = y - \operatorname{E}[\mathcal{A}(x)] , \qquad
    d_a = y - \operatorname{E}[\mathcal{A}(x) \mid y] = \operatorname{E}[e \mid y] ,

and the variances :math:`b` and :math:`a` of :math:`\mathcal{A}(x)` before and after,

.. math::
    \operatorname{E}[d_b^2] & = r + b & \qquad
    \operatorname{E}[d_a \, d_b] & = r & \\
    \operatorname{E}[d_a^2] & = r - a & \qquad
    \operatorname{E}[(d_b - d_a) \, d_b] & = b & \qquad
    \operatorname{E}[(d_b - d_a) \, d_a] & = a .

The right ones are Desroziers' checks (Desroziers et al., 2005), of the errors observations have
rather than were said to have, and of the spread ensembles should have. They were stated for linear
observables and normal errors, but the posterior's mean is all it takes: since
:math:`d_a = \operatorname{E}[e \mid y]`, the product :math:`d_a d_b` has the expectation of
:math:`e \, d_b`, which is :math:`r`. They hold on average over cases, and each case by itself may
be far off: neighbouring observations see the same weather.

Of :math:`M` members, the mean has an error of :math:`1 / M` of their variance. With members of the
two ensembles drawn apart, what is expected becomes :math:`r + \tfrac{M + 1}{M} b` and
:math:`r - \tfrac{M - 1}{M} a`, and the last two checks are corrected by :math:`- b / M` and
:math:`+ a / M`.

Observations *held out* see the analysis as it sees the truth, but for their own error. Members
dressed with it are mixtures of normal distributions, whose fair CRPS is

.. math:: \frac{1}{M} \sum_m g(d_m, r) - \frac{1}{2 M (M - 1)} \sum_{m \neq n} g(d_m - d_n, 2 r) ,
    \qquad g(d, v) = \operatorname{E} |d + \sqrt{v} \, \varepsilon|

(Grimit et al., 2006), without a draw. Without the error, a perfect ensemble would seem too sure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..errors import DataError, nearest

if TYPE_CHECKING:
    import xarray as xr

    from ..observations.operators import HourOperator, StateSpace

__all__ = [
    "dressed_crps",
    "hour_states",
    "innovation_moments",
    "innovation_statistics",
    "innovations",
    "verification",
    "verification_moments",
    "verification_statistics",
]

KEYS = ("variable", "level", "hour", "station", "place")
END = object()


# ---------------------------------------------------------------- of arrays


def innovation_moments(
    background: np.ndarray | None = None,
    analysis: np.ndarray | None = None,
    variance: np.ndarray | float = 1.0,
) -> dict[str, np.ndarray]:
    r"""What is averaged, at each observation.

    Arguments:
        background, analysis: Departures :math:`y - \mathcal{A}(x_m)` of members, each with shape
            :math:`(M, n)`; one of them may be missing.
        variance: The variance :math:`r` of errors in the same units, with shape :math:`(n)`.

    Returns:
        Arrays with shape :math:`(n)`, for :func:`innovation_statistics`.
    """
    if background is None and analysis is None:
        raise DataError("found neither a background nor an analysis; give departures of one")
    found: dict[str, np.ndarray] = {}
    m, ob, b = (0, None, None) if background is None else _mean_and_variance(background)
    if ob is not None and b is not None:
        r = np.broadcast_to(np.asarray(variance, np.float64), ob.shape)
        found |= {"ob_mean": ob, "ob_found": ob**2, "ob_expected": r + (m + 1) / m * b}
    if analysis is not None:
        n, oa, a = _mean_and_variance(analysis)
        r = np.broadcast_to(np.asarray(variance, np.float64), oa.shape)
        found |= {"oa_mean": oa, "oa_found": oa**2, "oa_expected": r - (n - 1) / n * a}
        if ob is not None and b is not None:
            if oa.shape != ob.shape:
                raise DataError(
                    f"background and analysis have departures of {len(ob)} and {len(oa)} "
                    "observations; take both from the same operator"
                )
            found |= {"error_found": oa * ob, "error_expected": r}
            found |= {"background_found": (ob - oa) * ob - b / m, "background_expected": b}
            found |= {"analysis_found": (ob - oa) * oa + a / n, "analysis_expected": a}
    return found


def _mean_and_variance(d: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    d = np.asarray(d, np.float64)
    if d.ndim != 2 or len(d) < 2:
        raise DataError(f"departures have shape {d.shape}, expected (M, n) with 2 members or more")
    return len(d), d.mean(axis=0), d.var(axis=0, ddof=1)


def innovation_statistics(means: pd.DataFrame) -> pd.DataFrame:
    r"""Adds ratios to means of :func:`innovation_moments`: `<what>_ratio` is the expected over the
    found value, below 1 where less error is expected than there is."""
    found = means.copy()
    for name in ("ob", "oa", "error", "background", "analysis"):
        if f"{name}_found" in found:
            found[f"{name}_ratio"] = found[f"{name}_expected"] / found[f"{name}_found"]
    return found


def dressed_crps(d: np.ndarray, variance: np.ndarray | float = 1.0) -> np.ndarray:
    r"""The fair CRPS of members dressed with the observation's error.

    Arguments:
        d: Departures, with shape :math:`(M, n)`.
        variance: The variance :math:`r` of errors, with shape :math:`(n)`.

    Returns:
        The scores, with shape :math:`(n)`.
    """
    d = np.asarray(d, np.float64)
    r = np.broadcast_to(np.asarray(variance, np.float64), d.shape[1:])
    crps = _absolute(d, r).mean(axis=0)
    m = len(d)
    if m == 1:  # the member alone, as a normal distribution
        return crps - _absolute(np.zeros_like(d[0]), 2 * r) / 2
    for k in range(1, m):  # pairs, without an array of all
        crps = crps - _absolute(d[k:] - d[:-k], 2 * r).sum(axis=0) / (m * (m - 1))
    return crps


def _absolute(d: np.ndarray, variance: np.ndarray) -> np.ndarray:
    r"""The mean :math:`\operatorname{E} |d + \sqrt{v} \varepsilon|`."""
    from scipy.special import erf

    s = np.sqrt(variance)
    with np.errstate(invalid="ignore", divide="ignore"):
        w = np.where(s > 0, d / s, 0.0)
    found = d * erf(w / np.sqrt(2)) + s * np.sqrt(2 / np.pi) * np.exp(-(w**2) / 2)
    return np.where(s > 0, found, np.abs(d))


def verification_moments(
    departures: np.ndarray, variance: np.ndarray | float = 1.0
) -> dict[str, np.ndarray]:
    r"""What is averaged at each observation that was held out; see :func:`innovation_moments` for
    the shapes, and :func:`verification_statistics` for what follows."""
    m, d, spread = _mean_and_variance(departures)
    r = np.broadcast_to(np.asarray(variance, np.float64), d.shape)
    return {
        "bias": -d,
        "square": d**2,
        "error": r,
        "spread": spread,
        "expected": r + (m + 1) / m * spread,
        "crps": dressed_crps(departures, r),
    }


def verification_statistics(means: pd.DataFrame) -> pd.DataFrame:
    r"""Scores from means of :func:`verification_moments`.

    Returns:
        `bias` of the ensemble's mean, `departure`, its root-mean-square departure from
        observations, `skill`, the same less the observations' own error (NaN where they say to
        have more than there is), `spread`, `ratio`, the root of expected over found squared
        departure, the observation's error in both, and `crps`.
    """
    found = means.drop(columns=list(verification_moments(np.zeros((2, 0)))))
    found["bias"], found["departure"] = means["bias"], np.sqrt(means["square"])
    rest = means["square"] - means["error"]
    found["skill"] = np.sqrt(rest.where(rest >= 0))
    found["spread"] = np.sqrt(means["spread"])
    found["ratio"] = np.sqrt(means["expected"] / means["square"])
    found["crps"] = means["crps"]
    return found


# ---------------------------------------------------------------- hour by hour


def innovations(
    operators: Iterable[HourOperator | None],
    background: Iterable[Any] | None = None,
    analysis: Iterable[Any] | None = None,
    *,
    by: Sequence[str] = ("variable", "level", "hour"),
    variances: Iterable[Any] | None = None,
) -> pd.DataFrame:
    r"""Statistics of innovations, an hour in memory at a time.

    Arguments:
        operators: The operators of :math:`L` hours, of observations that the analysis has seen.
        background, analysis: The states of each hour, standardized, as :math:`L` tensors with shape
            :math:`(M, C, H, W)`, see :func:`hour_states`; one of the two may be missing.
        by: What is told apart: of `variable`, `level`, `hour`, `station` and `place`.
        variances: The variances :math:`r` of whitened errors of each hour, where they are not 1:
            of decoded latents, what the decoder lacks is an error too
            (:class:`appa.observations.errors.WindowCovariance`).

    Returns:
        A table by group: `count`, the means `ob_mean` and `oa_mean` of O−B and O−A, their mean
        squares `ob_found` and `oa_found`, and with both, Desroziers' estimates `error_found`,
        `background_found` and `analysis_found`, whitened; beside each `<what>_expected` and the
        `<what>_ratio` of expected over found.

    Example:
        >>> table = innovations(operators, hour_states(prior, space), hour_states(analysis, space))
        >>> table.loc["2m_temperature"]
    """
    by = _keys(by)
    tables = []
    for hour, (b, a), r in _hours(operators, (background, analysis), variances):
        one = 1.0 if r is None else r
        tables.append(_sums(hour, innovation_moments(b, a, one), by))
    return innovation_statistics(_means(tables, by))


def verification(
    operators: Iterable[HourOperator | None],
    states: Iterable[Any],
    *,
    by: Sequence[str] = ("variable", "level"),
    physical: bool = True,
    variances: Iterable[Any] | None = None,
) -> pd.DataFrame:
    r"""Scores an ensemble at observations that were held out, an hour in memory at a time.

    Arguments:
        operators: The operators of :math:`L` hours, of observations the ensemble has not seen.
        states: The states of each hour, as of :func:`innovations`.
        by: What is told apart: of `variable`, `level`, `hour`, `station` and `place`.
        physical: Whether scores are in the observable's unit, or in units of errors.
        variances: As of :func:`innovations`.

    Returns:
        A table by group: `count` and what :func:`verification_statistics` tells.
    """
    by = _keys(by)
    tables = []
    for hour, (d,), r in _hours(operators, (states,), variances):
        scale = hour.error.double().cpu().numpy() if physical else np.ones(len(hour))
        variance = scale**2 * (1.0 if r is None else r)
        tables.append(_sums(hour, verification_moments(scale * d, variance), by))
    return verification_statistics(_means(tables, by))


def hour_states(estimate: xr.Dataset, space: StateSpace, hours: Any = None) -> Iterator[Any]:
    r"""The standardized states of a dataset, hour by hour, each with shape :math:`(M, C, H, W)`.

    Arguments:
        estimate: A dataset with all variables of the model, lazy or not.
        space: Where states live, :meth:`StateSpace.of` a model.
        hours: The hours; by default all it has.
    """
    times = estimate["time"].values if hours is None else np.atleast_1d(hours)
    for time in times:
        try:
            one = estimate.sel(time=[np.datetime64(time, "ns")])
        except KeyError:
            raise DataError(
                f"the estimate has no {np.datetime_as_string(np.datetime64(time), 'h')}; give "
                "hours that it has"
            ) from None
        if "member" not in one.dims:  # of the whole, it would be read
            one = one.expand_dims("member")
        yield space.standardizer.to_tensor(one)[:, 0]


def _keys(by: Sequence[str]) -> list[str]:
    by = [by] if isinstance(by, str) else list(by)
    for key in by:
        if key not in KEYS:
            raise DataError(f"observations cannot be told apart by {key!r}{nearest(key, KEYS)}")
    if not by:
        raise DataError("found by=(), expected one of " + ", ".join(KEYS))
    return by


def _hours(
    operators: Iterable[HourOperator | None],
    sources: Sequence[Iterable[Any] | None],
    variances: Iterable[Any] | None,
) -> Iterator[tuple[HourOperator, list[Any], np.ndarray | None]]:
    r"""The operator of each hour with observations, and the departures from each source."""
    import torch

    iterators = [None if source is None else iter(source) for source in (*sources, variances)]
    for k, operator in enumerate(operators):
        items: list[Any] = [None if it is None else next(it, END) for it in iterators]
        if any(item is END for item in items):
            raise DataError(f"states end after {k} hours, and operators go on; give one an hour")
        if operator is None:
            continue
        *states, r = items
        with torch.no_grad():
            departures = [
                None if x is None else operator.departure(x.to(operator.y.device)).cpu().numpy()
                for x in states
            ]
        yield operator, departures, None if r is None else np.asarray(r, np.float64)


def _sums(operator: HourOperator, moments: dict[str, np.ndarray], by: list[str]) -> pd.DataFrame:
    r"""The number of rows and the sums of moments in each group of an hour, where defined."""
    table = pd.DataFrame({"count": np.ones(len(operator), np.int64), **moments})
    names = [f"by {key}" for key in by]  # a level or place may be named as a moment is
    for name, key in zip(names, by, strict=True):
        table[name] = operator.hour if key == "hour" else operator.rows[key].to_numpy()
    defined = np.isfinite(table[list(moments)].to_numpy()).all(axis=1)
    sums: Any = table.loc[defined].groupby(names, dropna=False, observed=True).sum()
    return sums.rename_axis(by)


def _means(tables: list[pd.DataFrame], by: list[str]) -> pd.DataFrame:
    if not sum(map(len, tables)):
        raise DataError("no hour has an observation to compare with; check hours and variables")
    sums: Any = pd.concat(tables).groupby(level=by, dropna=False).sum()
    return sums[["count"]].join(sums.drop(columns="count").div(sums["count"], axis=0))
