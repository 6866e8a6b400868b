r"""Error budgets, and the increments that an ensemble's covariance makes.

A budget sets the scores of variations of a run beside those of a reference, with the interval of
each difference (:func:`~appa.evaluation.comparison.compare`): dates are resampled, the same for
both. An increment of one observation :math:`y` with error :math:`\sigma` is, from members
:math:`x_m` and what they would be observed as, :math:`h_m`,

.. math:: \frac{\mathrm{Cov}(x, h)}{\mathrm{Var}(h) + \sigma^2} \, (y - \bar{h}) ,

the ensemble's :math:`B H^\top (H B H^\top + R)^{-1} (y - H \bar{x})`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..errors import DataError
from .comparison import compare, no_worse

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ensemble_increment", "error_budget_table"]

SCORES = ("skill", "crps", "ratio")
DIFFERENCES = ("difference", "low", "high", "relative", "relative_low", "relative_high")


def error_budget_table(
    means: Mapping[str, xr.Dataset],
    *,
    reference: str = "reference",
    channels: Sequence[str] | None = None,
    days: int = 1,
    margin: float = 2.0,
    seed: int = 0,
) -> pd.DataFrame:
    r"""The scores of variations beside those of the reference.

    Arguments:
        means: Means of statistics by name, see :func:`appa.tasks.experiments.error_budget`.
        reference: The name of what they are compared with.
        channels: The channels told, by default all.
        days: The days of a block; dates within are resampled together.
        margin: How much worse counts as nothing, in percent of the reference's score.
        seed: The seed of resampling.

    Returns:
        One row for each variation, region, channel and score: `value`, `difference` from the
        reference, `low` and `high`, the ends of its interval, `relative` (the value over the
        reference's, less one) with `relative_low` and `relative_high`, whether it is `real`, and
        of skill and CRPS the `verdict` by the margin, see
        :func:`~appa.evaluation.comparison.no_worse`.
    """
    import pandas as pd

    if reference not in means:
        raise DataError(f"there is no {reference!r} among {', '.join(means)}")
    rows: list[dict[str, Any]] = []
    for name, part in means.items():
        found = compare(means[reference], part, days=days, seed=seed)
        known = found["channel"].values.tolist()
        for channel in known if channels is None else [c for c in channels if c in known]:
            for region in found["region"].values.tolist():
                at = found.sel(channel=channel, region=region)
                for score in SCORES:
                    row = {"variation": name, "region": region, "channel": channel, "score": score}
                    row["value"] = float(at[f"{score}_b"])
                    if name != reference:
                        for key in DIFFERENCES:
                            row[key] = float(at[f"{score}_{key}"])
                        row["real"] = bool(at[f"{score}_real"])
                        if score != "ratio":  # which is not better the smaller
                            row["verdict"] = no_worse(at, margin, score).item()
                    rows.append(row)
    return pd.DataFrame(rows)


def ensemble_increment(
    ensemble: xr.Dataset, equivalents: np.ndarray, departure: float, error: float
) -> xr.Dataset:
    r"""The increment of one observation by the covariance of members.

    Arguments:
        ensemble: The members: draws of a prior, or a background of an LETKF.
        equivalents: What each would be observed as, :math:`h_m`, with shape :math:`(M)`.
        departure: How far the observation is from their mean.
        error: Its error.
    """
    h = xr.DataArray(np.asarray(equivalents, np.float64), dims="member")
    if h.sizes["member"] != ensemble.sizes.get("member"):
        raise DataError(
            f"found {h.sizes['member']} equivalents of {ensemble.sizes.get('member', 0)} members"
        )
    h = h - h.mean("member")
    n = h.sizes["member"] - 1
    weight = departure / (float((h**2).sum()) / n + error**2) / n
    data = ensemble.drop_vars("member", errors="ignore").astype(np.float64)
    return ((data - data.mean("member")) * h).sum("member", skipna=False) * weight
