r"""Errors of whitened observations, with what the decoder cannot express.

Given the latent, a whitened observation departs from what the decoded state says by its own error,
of unit variance, and by :math:`r` at its place (:mod:`appa.observations.representation`). Over the
hours of a window,

.. math:: \Sigma_y = I + S \, K \, S

where :math:`S` holds the standard deviations of :math:`r` in units of the observations' errors and
:math:`K` is the correlation in time of those of one variable and level at one place, and the
identity between others. With a block for each place a product costs no more than the hours of a
window for each observation. Neighbours in space and on other levels, whose :math:`r` is nearly the
same, count by their number: :math:`s_i^2` is multiplied by :math:`f_i \geq 1`, see
:mod:`appa.observations.crowding`. Three forms have names: `none` is :math:`S = 0`, the paper's
literal setting; `diagonal` is :math:`K = I`; `temporal` is the above.

The standard deviation depends on what is observed:

* a variable of the state on one of its levels: :math:`s^2 = \sum_{kl} w_k w_l \, s_k s_l \,
  \rho_{kl}` over the points :math:`k` it is interpolated from, which is below theirs, for small
  scales average out;
* between two levels: the mean of theirs with the same weights as the values, as if they were fully
  correlated;
* a derived observable: with :math:`g_c` the change of the observable when channel :math:`c` is
  changed by :math:`s_c` from the mean state, everywhere, :math:`s^2 = g^\top V g` with :math:`V`
  the correlation between channels. Steps of one standard deviation rather than derivatives, since
  wind speed has none at rest. Its correlation in time is the mean of those of the channels,
  weighted by :math:`g_c^2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from ..data.variables import VARIABLES
from ..errors import DataError, nearest
from .blocks import Blocks
from .crowding import Layer, crowding
from .representation import Representation
from .stencils import StateSpace, Stencils

__all__ = ["REPRESENTATIONS", "WindowCovariance", "corners", "rows_std"]

REPRESENTATIONS = ("none", "diagonal", "temporal")

Array = NDArray[np.float64]


def corners(
    rep: Representation, space: StateSpace, channel: int, latitude: Array, longitude: Array
) -> tuple[NDArray[np.int64], Array]:
    r"""The points a channel is interpolated from at places, and their weights: :math:`(n, 4)`."""
    variable = VARIABLES[rep.channels[channel].variable]
    stencils = Stencils(space, latitude, longitude)
    if variable.standard_name in ("eastward_wind", "northward_wind"):
        return stencils.vector
    return stencils.sea if variable.missing else stencils.scalar


def places_std(
    rep: Representation, space: StateSpace, channel: int, latitude: Array, longitude: Array
) -> Array:
    r"""The standard deviation of an interpolated channel of :math:`r`, with shape :math:`(n)`."""
    places, inverse = np.unique(latitude + 1j * longitude, return_inverse=True)
    index, weight = corners(rep, space, channel, places.real, places.imag)
    scale = weight * rep.std[channel].reshape(-1)[index]
    variance = _quadratic(rep, channel, index, scale)
    return np.sqrt(np.maximum(variance, 0))[inverse.reshape(-1)]


def _quadratic(
    rep: Representation, channel: int, index: NDArray[np.int64], scale: Array, power: int = 1
) -> Array:
    r"""The sums :math:`\sum_{kl} a_k a_l \, \rho_{kl}^p` over points, with shape :math:`(n)`."""
    out = scale.sum(-1) ** 2
    some = (np.abs(scale) > 1e-9).sum(-1) > 1  # of one point the square is the answer
    i, j = np.divmod(index[some], rep.grid.longitudes)
    phi, lam = rep.grid.latitude[i], rep.grid.longitude[j]
    rho = rep.between(channel, phi[:, :, None], lam[:, :, None], phi[:, None], lam[:, None])
    out[some] = np.einsum("ni,nij,nj->n", scale[some], rho**power, scale[some])
    return out


def rows_std(
    rep: Representation,
    rows: pd.DataFrame,
    space: StateSpace,
    *,
    error: Any = None,
    operator: Any = None,
) -> Array:
    r"""The standard deviations of :math:`r` at observations, in units of their errors.

    Arguments:
        rep: The covariance of :math:`r`.
        rows: The observations of an hour, with `variable, level, latitude, longitude, error`.
        space: Where states live, with `standardizer` and `land`.
        error: Their errors, if not those of the rows, with shape :math:`(n)`.
        operator: What computes them, whitened, from states :math:`(B, C, H, W)`. Only derived
            observables need it.

    Returns:
        The standard deviations, with shape :math:`(n)`.
    """
    error = np.asarray(rows["error"] if error is None else error, np.float64)
    return _rows(rep, rows, space, error, [(operator, slice(0, len(rows)))])[0]


def _rows(
    rep: Representation,
    rows: pd.DataFrame,
    space: StateSpace,
    error: Array,
    operators: list[tuple[Any, slice]],
) -> tuple[Array, NDArray[np.int64], list[dict[int, float]]]:
    r"""The standard deviations, and the kinds of rows with the channels each is made of."""
    check_channels(rep, space)
    latitude, longitude = (rows[name].to_numpy(np.float64) for name in ("latitude", "longitude"))
    std, made = np.zeros(len(rows)), []
    kinds, keys = kinds_of(rows)
    for kind, (name, level) in enumerate(keys):
        which = np.flatnonzero(kinds == kind)
        parts = parts_of(space, name, level)
        if parts is None:
            shares = []
            for operator, part in operators:  # hour by hour, as states are
                own = which[(which >= part.start) & (which < part.stop)]
                if len(own):
                    there = own - part.start
                    std[own], share = _derived(rep, name, there, error[own], operator)
                    shares.append(share)
            parts = {c: sum(share[c] for share in shares) / len(shares) for c in shares[0]}
        else:
            for c, share in parts.items():
                there = places_std(rep, space, c, latitude[which], longitude[which])
                std[which] += share * space.std[c] * there / error[which]
        made.append(parts)
    return std, kinds, made


def kinds_of(rows: pd.DataFrame) -> tuple[NDArray[np.int64], list[tuple[str, float]]]:
    r"""The variables and levels of rows, 0 hPa at the surface, and which is whose."""
    names, variables = pd.factorize(rows["variable"])
    heights, levels = pd.factorize(rows["level"].astype(np.float64).fillna(0.0))
    _, first, kinds = np.unique(
        names * len(levels) + heights, return_index=True, return_inverse=True
    )
    return kinds, [(str(variables[names[i]]), float(levels[heights[i]])) for i in first]


def parts_of(space: StateSpace, name: str, level: float) -> dict[int, float] | None:
    r"""The channels a variable at a level is interpolated from; nothing if it is derived."""
    if name not in space:
        return None
    channels = space.channels(name)
    if VARIABLES[name].surface:
        return dict.fromkeys(channels.tolist(), 1.0)
    index, share = space.bracket(np.array([level]))
    return {c: w for c, w in zip(channels[index[0]].tolist(), share[0].tolist(), strict=True) if w}


@torch.no_grad()
def _derived(
    rep: Representation, name: str, which: NDArray[np.int64], error: Array, operator: Any
) -> tuple[Array, dict[int, float]]:
    r"""The standard deviations of a derived observable's rows, and the shares of channels."""
    from .observables import find, split_input

    observable = find(name)
    if operator is None:
        raise DataError(f"{name!r} is derived from a state; give the operator that computes it")
    inputs = [split_input(text) for text in observable.inputs]
    used = [
        c
        for c, channel in enumerate(rep.channels)
        if any(channel.variable == v and level in (None, channel.level) for v, level in inputs)
    ]
    index = torch.from_numpy(np.asarray(which))
    x = torch.from_numpy(rep.dataset["state"].values).float().to(operator.y.device)
    base = operator(x[None])[0].double().cpu()[index]
    steps = []
    for c in used:
        changed = x.clone()
        changed[c] += torch.from_numpy(rep.std[c]).to(x)
        step = operator(changed[None])[0].double().cpu()[index] - base
        if observable.period is not None:
            period = torch.from_numpy(observable.period / error)
            step = torch.remainder(step + period / 2, period) - period / 2
        steps.append(step.numpy())
    g = np.stack(steps)
    variance = np.einsum("cn,cd,dn->n", g, rep.cross[np.ix_(used, used)], g)
    share = (g**2).mean(1)
    share = share / share.sum() if share.sum() > 0 else np.full(len(used), 1 / len(used))
    return np.sqrt(np.maximum(variance, 0)), dict(zip(used, share.tolist(), strict=True))


def check_channels(rep: Representation, space: StateSpace) -> None:
    expected = list(space.standardizer.channels)
    if rep.channels != expected or rep.grid != space.grid:
        raise DataError(
            f"the representation error is of {len(rep.channels)} channels on {rep.grid}, the "
            f"states have {len(expected)} on {space.grid}; estimate it with this model"
        )


def _crowding(
    rep: Representation,
    rows: pd.DataFrame,
    space: StateSpace,
    hour: NDArray[np.int64],
    kind: NDArray[np.int64],
    made: list[dict[int, float]],
    group: NDArray[np.int64],
    device: torch.device | str,
) -> Array:
    r"""What :math:`s^2` of rows is multiplied by for their neighbours, with shape :math:`(n)`."""
    latitude, longitude = (rows[name].to_numpy(np.float64) for name in ("latitude", "longitude"))
    places, code = np.unique(latitude + 1j * longitude, return_inverse=True)
    code = code.reshape(-1)
    once = np.zeros(len(rows), bool)  # reports of one place and hour share a block already
    once[np.unique(group * (hour.max() + 1) + hour, return_index=True)[1]] = True
    names, variables = pd.factorize(rows["variable"])
    factor = np.ones(len(rows))
    for which, name in enumerate(variables):
        own = np.flatnonzero(names == which)
        kinds = np.unique(kind[own])
        if name in space:
            channels = sorted({c for k in kinds for c in made[k]})
            parts = [{k: made[k].get(c, 0.0) for k in kinds} for c in channels]
            together = rep.cross[np.ix_(channels, channels)] ** 2
        else:  # of a derived one no more is known than the channel it is made of most
            parts = [{k: 1.0} for k in kinds]
            channels = [max(made[k], key=lambda c, k=k: made[k][c]) for k in kinds]
            together = np.eye(len(kinds))
        layers = []
        for channel, shares in zip(channels, parts, strict=True):
            table = np.zeros(len(made))
            table[list(shares)] = list(shares.values())
            row = np.flatnonzero(table[kind[own]])
            layers.append(Layer(channel, row, table[kind[own][row]]))
        there, back = np.unique(code[own], return_inverse=True)
        at = places[there]
        index, weight = corners(rep, space, channels[0], at.real, at.imag)
        weight = np.abs(weight)  # a wind's are negative across a pole
        itself = np.stack([_quadratic(rep, c, index, weight, 2) for c in channels])[:, back]
        factor[own] = crowding(
            rep,
            layers,
            together,
            hour[own],
            index[back],
            weight[back],
            itself,
            once[own],
            device,
        )
    return factor


class WindowCovariance(Blocks):
    r"""The covariance :math:`\Sigma_y` of the whitened observations of a window, given its latents.

    Arguments:
        operators: The operators of consecutive hours, :py:`None` where nothing was seen. Vectors
            hold their observations one hour after the other, :math:`N` in all.
        rep: The covariance of :math:`r`; without it, :math:`\Sigma_y = I`.
        space: Where states live.
        representation: One of :data:`REPRESENTATIONS`.

    Example:
        >>> cov_y = WindowCovariance(operators, model.representation, StateSpace.of(model))
        >>> cov_y.solve(v)  # Σ_y⁻¹ v
    """

    def __init__(
        self,
        operators: Sequence[Any],
        rep: Representation | None,
        space: StateSpace,
        representation: str = "temporal",
    ):
        if representation not in REPRESENTATIONS:
            raise DataError(
                f"unknown representation {representation!r}"
                f"{nearest(representation, REPRESENTATIONS)}"
            )
        seen = [(t, operator) for t, operator in enumerate(operators) if operator is not None]
        count = sum(len(operator.rows) for _, operator in seen)
        empty = np.zeros(count, np.int64)
        if rep is None or representation == "none" or not seen:
            super().__init__(np.arange(count), empty, np.zeros(count), empty, np.ones((1, 1)))
            self.std = torch.zeros(count)
        else:
            columns = ["variable", "level", "latitude", "longitude", "place", "gridded"]
            rows = pd.concat([operator.rows[columns] for _, operator in seen])
            error = torch.cat([operator.error.detach().double().cpu() for _, operator in seen])
            sizes = [len(operator.rows) for _, operator in seen]
            ends = np.cumsum(sizes)
            parts = [
                (operator, slice(int(end - size), int(end)))
                for (_, operator), size, end in zip(seen, sizes, ends, strict=True)
            ]
            std, kind, made = _rows(rep, rows, space, error.numpy(), parts)
            hour = np.repeat([t for t, _ in seen], sizes)
            device = seen[0][1].y.device
            group, table = np.arange(count), np.ones((len(made), len(operators)))
            if representation == "temporal":
                columns = ["variable", "level", "place", "gridded"]
                group = rows.groupby(columns, dropna=False, sort=False).ngroup().to_numpy()
                lag = np.arange(len(operators), dtype=np.float64)
                table = np.stack([_correlation(rep, shares, lag) for shares in made])
            std = std * np.sqrt(_crowding(rep, rows, space, hour, kind, made, group, device))
            super().__init__(group, hour, std, kind, table)
            self.std = torch.from_numpy(std).float()
        if seen:
            self.to(seen[0][1].y.device)

    def __len__(self) -> int:
        return len(self.std)

    def to(self, device: torch.device | str) -> WindowCovariance:
        super().to(device)
        self.std = self.std.to(device)
        return self


def _correlation(rep: Representation, shares: dict[int, float], lag: Array) -> Array:
    total = sum(shares.values())
    return np.sum([share / total * rep.in_time(c, lag) for c, share in shares.items()], axis=0)
