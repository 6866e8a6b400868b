r"""Gross errors that pass for plausible: observations against what the prior draws.

An unconditional ensemble of the period says what is usual at each place and hour, with mean
:math:`\bar{a}` and standard deviation :math:`s` over members. With `check`, an observation farther
than :math:`k \sqrt{s^2 + s_r^2 + \sigma^2}` from :math:`\bar{a}` is left out; with `huber`, its
error is inflated as Huber's likelihood would have it, so that it moves the mean no farther than one
at that distance.
Members are decoded, and :math:`s_r` is the standard deviation of what the decoder cannot express,
where that is known (:mod:`appa.observations.errors`): of precipitation it is most of what varies.
There it grows with the rain, and has no Gaussian's tails; of :math:`y` observed it is
:math:`\sqrt{k_r s_r y}` where that is more (:mod:`appa.observations.rain`), for an observation is
taken for good until it proves bad.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..observations.checks import BACKGROUND, background_check, huber_weights, table
from ..observations.errors import rows_std
from ..observations.operators import HourOperator
from ..progress import progress
from .model import RAIN
from .posterior import Posterior
from .resuming import RunState

__all__ = ["MEMBERS", "against_prior"]

MEMBERS = 16
SEED = 2**31  # not that of any member of the ensemble
OUT = 1e6  # what the error of an observation is multiplied by that is left out


@torch.no_grad()
def against_prior(
    prior: Posterior,
    operators: Sequence[HourOperator | None],
    method: str,
    threshold: float,
    *,
    batch: int | None = None,
    keeper: RunState | None = None,
) -> tuple[list[HourOperator | None], pd.DataFrame]:
    r"""Compares observations with the prior.

    Arguments:
        prior: The prior over their hours.
        operators: The observations of each hour.
        method: `"check"` or `"huber"`.
        threshold: The number :math:`k` of standard deviations.
        batch: The number of windows denoised at once, by default all.
        keeper: Where steps and latents are kept: a run that goes on does not draw them again.

    Returns:
        The operators, with errors inflated, and a table of what was left out, with columns
        `reason`, `count` and `example`.
    """
    z = drawn(prior, batch, keeper)
    found: list[HourOperator | None] = []
    count, example = 0, ""
    for hour, operator in enumerate(shown(operators)):
        if operator is None:
            found.append(None)
            continue
        operator = operator.to(prior.model.device)
        # in units of the observation's error, and with that of the mean of few members
        departure = torch.cat([operator.departure(prior.model.decode(z[m : m + 1, hour]))
                               for m in range(MEMBERS)])  # fmt: skip
        mean, own = departure.mean(0), departure.std(0)
        spread = own * (1 + 1 / MEMBERS) ** 0.5
        lacking = _lacking(prior, operator).to(mean)
        error = (1 + lacking**2) ** 0.5
        if method == "huber":
            weight = huber_weights(mean, (spread**2 + error**2) ** 0.5, threshold)
            represented = prior.settings.representation != "none"  # joins the error afterwards
            factor = inflation(weight, own, error if represented else torch.ones_like(error))
        else:
            far = background_check(mean, spread, error, threshold)
            factor = torch.where(far, OUT, 1.0)
            if far.any():
                row = operator.rows.iloc[int(far.nonzero()[0])]
                example = example or f"{row['variable']} of {row['value']:.6g} at {operator.hour}"
                count += int(far.sum())
        found.append(operator.inflate(factor))
    return found, table({BACKGROUND: (count, example)} if count else {})


def inflation(weight: Tensor, spread: Tensor, error: Tensor) -> Tensor:
    r"""What the errors of observations are multiplied by for their pull to be that of Huber's.

    An observation moves the prior's mean by :math:`\frac{s^2}{s^2 + \sigma^2} d`. For that to be
    :math:`f^2` times less, all that :math:`d` is expected to be has to grow by as much, of which
    the error alone can: :math:`s^2 + \sigma'^2 = f^2 (s^2 + \sigma^2)`.

    Arguments:
        weight: Huber's :math:`f`, with shape :math:`(n)`.
        spread: The prior's spread :math:`s`, in units of the errors that grow, with shape
            :math:`(n)`.
        error: :math:`\sigma` in these units, above 1 by what joins the error later and does not
            grow, with shape :math:`(n)`.

    Returns:
        The factors, with shape :math:`(n)`.
    """
    return (1 + (weight**2 - 1) * (spread**2 + error**2)) ** 0.5


def drawn(prior: Posterior, batch: int | None, keeper: RunState | None) -> Tensor:
    r"""Members of the prior, with shape :math:`(M, L, c, h, w)`, or those that were kept."""
    name = "background"
    if keeper is not None and keeper.finished(name) and (kept := keeper.load(name)) is not None:
        return kept["z"].to(prior.model.device)
    steps = prior.windows * prior.sampler.steps
    with progress(steps, "drawing the background", unit="steps") as bar:
        z = prior.draw(
            range(MEMBERS), SEED, batch=batch, advance=bar.advance, keeper=keeper, name=name
        )
    if keeper is not None:
        keeper.done(name, {"z": z})
    return z


def shown(operators: Sequence[HourOperator | None]) -> Iterator[HourOperator | None]:
    r"""The observations of each hour, and how many hours are compared."""
    with progress(len(operators), "comparing with the background", unit="hours") as bar:
        for operator in operators:
            yield operator
            bar.advance()


def _lacking(prior: Posterior, operator: HourOperator) -> torch.Tensor:
    r"""The standard deviations of what the decoder lacks of observations, in units of their errors,
    with shape :math:`(n)`."""
    rep, space = prior.model.representation, prior.space
    if rep is None or space is None:
        return torch.zeros(len(operator))
    error = operator.error.double().cpu().numpy()
    std = rows_std(rep, operator.rows, space, error=error, operator=operator)
    rain = (operator.rows["variable"] == RAIN).to_numpy()
    if rain.any():
        amount = operator.rows["value"].to_numpy(np.float64).clip(min=0) / error
        more = np.sqrt(prior.model.rain_rate(rep) * std * amount)
        std = np.where(rain, np.maximum(std, more), std)
    return torch.from_numpy(std)
