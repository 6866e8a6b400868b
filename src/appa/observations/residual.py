r"""Drawing what the decoder cannot express, given observations and latents.

With the latents drawn, :math:`r` is still free: :math:`D(z)` alone misses the observations by as
much as the decoder errs, and lacks small scales. For each channel, observations of it tell

.. math:: y - \mathcal{A}(D(z)) = H r + e , \qquad r \sim \mathcal{N}(0, B) , \qquad
    e \sim \mathcal{N}(0, I)

in whitened units, over the hours of a period at once, and a draw from :math:`p(r \mid y, z)` is
optimal interpolation with perturbed observations,

.. math:: r = r_b + B H^\top (H B H^\top + I)^{-1} (y - \mathcal{A}(D(z)) - H r_b - e') ,

with :math:`r_b` and :math:`e'` drawn from their distributions. It is exact for the covariance
:math:`B = S (T \otimes \Sigma) S` of :mod:`appa.observations.representation`. :math:`H`
interpolates, as :math:`\mathcal{A}` does. A few correlation lengths away from observations
:math:`r` is as free as before. Over land that of the sea surface is zero.

Nothing is ever as large as observations times observations. A correlation that depends on distance
is a convolution along parallels: after a Fourier transform in longitude :math:`\Sigma` falls apart
into one matrix :math:`H \times H` for each zonal wavenumber, whose root also draws :math:`r_b`. The
system is solved by conjugate gradients, preconditioned by the blocks of each place's own hours.

Observations of a variable of the state, on one of its levels, take part. Others (derived ones,
those between levels) do not move :math:`r`: they have had their say about :math:`z`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError
from .errors import Blocks, check_channels, footprint, kinds_of, parts_of, places_std
from .representation import Representation
from .stencils import StateSpace

__all__ = ["Correlated", "Report", "conjugate_gradients", "draw_residual"]


class Noise(Protocol):
    r"""Standard normal noise of members, the same for the same step."""

    def __call__(self, shape: Sequence[int], *step: int) -> Tensor:
        r"""Noise with shape :math:`(M, *)`."""
        ...


@dataclass
class Report:
    r"""What a draw did.

    Arguments:
        used: The number of observations that took part.
        unused: The number of those that observe no single channel.
        iterations: The most iterations a channel took.
        residual: The largest relative residual left.
    """

    used: int = 0
    unused: int = 0
    iterations: int = 0
    residual: float = 0.0
    channels: list[str] = field(default_factory=list)  # those that were observed


class Correlated:
    r"""The correlation :math:`T \otimes \Sigma` of a channel, over hours and the grid.

    Arguments:
        rep: The covariance of :math:`r`.
        channel: The channel.
        hours: The number of hours :math:`L`.
        device: Where it is applied.
    """

    def __init__(
        self,
        rep: Representation,
        channel: int,
        hours: int,
        device: torch.device | str = "cpu",
    ):
        grid, self.width = rep.grid, rep.grid.longitudes
        phi, lam = grid.latitude, grid.longitude[: self.width // 2 + 1]
        symbol = np.empty((len(lam), len(phi), len(phi)))
        for i, north in enumerate(phi):
            row = rep.between(channel, north, 0.0, phi[:, None], lam[None])
            # the transform of an even sequence, of which this is one half, is real
            symbol[:, i] = np.fft.hfft(row, n=self.width)[:, : len(lam)].T
        self.space, self.space_root = _root(torch.from_numpy(symbol), device)
        lag = np.arange(hours)
        times = rep.in_time(channel, np.abs(lag[:, None] - lag))
        self.time, self.time_root = _root(torch.from_numpy(times), device)

    def matmul(self, f: Tensor) -> Tensor:
        r"""The product with fields :math:`(M, L, H, W)`."""
        return self._apply(self.time, self.space, f)

    def color(self, eps: Tensor) -> Tensor:
        r"""Fields with this covariance, of white noise :math:`(M, L, H, W)`."""
        return self._apply(self.time_root, self.space_root, eps)

    def _apply(self, time: Tensor, space: Tensor, f: Tensor) -> Tensor:
        m, hours, h, w = f.shape
        f = torch.einsum("st,mthw->mshw", time, f)
        waves = torch.view_as_real(torch.fft.rfft(f))  # (M, L, H, F, 2)
        waves = waves.permute(3, 2, 0, 1, 4)  # (F, H, M, L, 2)
        waves = torch.bmm(space, waves.reshape(len(space), h, -1)).view(-1, h, m, hours, 2)
        waves = torch.view_as_complex(waves.permute(2, 3, 1, 0, 4).contiguous())
        return torch.fft.irfft(waves, n=w)


def _root(matrix: Tensor, device: torch.device | str) -> tuple[Tensor, Tensor]:
    r"""A positive semidefinite matrix, free of what rounding made negative, and a root of it."""
    # Poles are one point each, and smooth fields nearly linear: Cholesky would fail.
    value, vector = torch.linalg.eigh(matrix)
    root = vector * value.clamp(min=0).sqrt().unsqueeze(-2)
    return (root @ root.mT).float().to(device), root.float().to(device)


@dataclass
class _Rows:
    r"""The observations of a channel: :math:`H` in whitened units, of fields of unit variance."""

    place: Tensor  # (n, 4), of the period's fields, flattened
    weight: Tensor  # (n, 4)
    blocks: Blocks
    which: Tensor  # (n), of all observations

    def to(self, device: torch.device) -> _Rows:
        place, weight, which = (t.to(device) for t in (self.place, self.weight, self.which))
        return _Rows(place, weight, self.blocks.to(device), which)

    def observe(self, u: Tensor) -> Tensor:
        flat = u.flatten(1).index_select(1, self.place.flatten())
        return (flat.unflatten(1, self.place.shape) * self.weight).sum(-1)

    def adjoint(self, v: Tensor, shape: Sequence[int]) -> Tensor:
        flat = v.new_zeros(len(v), int(np.prod(shape)))
        parts = (v.unsqueeze(-1) * self.weight).flatten(1)
        return flat.index_add_(1, self.place.flatten(), parts).unflatten(1, tuple(shape))


@torch.no_grad()
def draw_residual(
    operators: Sequence[Any],
    departure: Tensor,
    rep: Representation,
    space: StateSpace,
    noise: Noise,
    *,
    channels: Sequence[int] | None = None,
    tolerance: float = 1e-3,
    iterations: int = 200,
) -> tuple[Tensor, Report]:
    r"""Draws :math:`r \sim p(r \mid y, z)`.

    Arguments:
        operators: The operators of consecutive hours, :py:`None` where nothing was seen.
        departure: The whitened departures :math:`y - \mathcal{A}(D(z))` of members, one hour after
            the other, with shape :math:`(M, N)`.
        rep: The covariance of :math:`r`.
        space: Where states live.
        noise: Noise of the members, of which steps `(channel, 0)` and `(channel, 1)` are used.
        channels: Which channels to draw, all by default. One at a time keeps memory small.
        tolerance: The relative residual at which the solver stops.
        iterations: The most iterations it does.

    Returns:
        The draws, standardized, to be added to :math:`D(z)`, with shape :math:`(M, L, C, H, W)`,
        and a report.
    """
    check_channels(rep, space)
    chosen = list(range(len(rep.channels)) if channels is None else channels)
    count = sum(len(operator.rows) for operator in operators if operator is not None)
    if departure.ndim != 2 or departure.shape[1] != count:
        raise DataError(
            f"found departures with shape {tuple(departure.shape)}, expected (members, {count}): "
            "those of all hours, one after the other"
        )
    members, hours, device = len(departure), len(operators), departure.device
    shape = (hours, *rep.grid.shape)
    observed = _by_channel(operators, rep)
    out = torch.empty(members, hours, len(chosen), *rep.grid.shape, device=device)
    parts = [which for pieces in observed.values() for _, which, _ in pieces]
    report = Report(unused=count - sum(map(len, parts)))
    for k, c in enumerate(chosen):
        std = torch.from_numpy(rep.std[c]).float().to(device)
        if not bool(std.any()):
            out[:, :, k] = 0.0
            continue
        prior = Correlated(rep, c, hours, device)
        u = prior.color(noise(shape, c, 0).to(device))
        if c in observed:
            rows = _rows(operators, observed[c], rep, space, c, prior.time[0]).to(device)
            perturbation = noise((len(rows.which),), c, 1).to(device)
            b = departure[:, rows.which].float() + perturbation - rows.observe(u)

            def product(v: Tensor, prior: Correlated = prior, rows: Any = rows) -> Tensor:
                return v + rows.observe(prior.matmul(rows.adjoint(v, shape)))

            v, steps, residual = conjugate_gradients(
                product, b, rows.blocks.solve, tolerance, iterations
            )
            u = u + prior.matmul(rows.adjoint(v, shape))
            report.used += len(rows.which)
            report.iterations = max(report.iterations, steps)
            report.residual = max(report.residual, residual)
            report.channels.append(rep.channels[c].name)
        out[:, :, k] = std * u
    return out, report


# Where a channel was observed: the hour, which rows of its operator, which of all observations.
Piece = tuple[int, NDArray[np.int64], NDArray[np.int64]]


def _by_channel(operators: Sequence[Any], rep: Representation) -> dict[int, list[Piece]]:
    r"""The observations of each channel that are of it alone."""
    found: dict[int, list[Piece]] = {}
    offset = 0
    for t, operator in enumerate(operators):
        if operator is None:
            continue
        kinds, keys = kinds_of(operator.rows)
        for kind, (name, level) in enumerate(keys):
            shares = parts_of(rep, name, level)
            if shares is not None and len(shares) == 1:
                which = np.flatnonzero(kinds == kind)
                found.setdefault(next(iter(shares)), []).append((t, which, which + offset))
        offset += len(operator.rows)
    return found


def _rows(
    operators: Sequence[Any],
    pieces: list[Piece],
    rep: Representation,
    space: StateSpace,
    channel: int,
    correlation: Tensor,
) -> _Rows:
    r"""The observations of a channel, in the order of their hours."""
    points = int(np.prod(rep.grid.shape))
    columns = ["latitude", "longitude", "place", "gridded"]
    hour = np.concatenate([np.full(len(which), t) for t, which, _ in pieces])
    table = pd.concat([operators[t].rows[columns].iloc[which] for t, which, _ in pieces])
    error = np.concatenate([operators[t].error.double().cpu().numpy()[w] for t, w, _ in pieces])
    latitude, longitude = (table[name].to_numpy(np.float64) for name in columns[:2])
    index, weight = footprint(rep, space, channel, latitude, longitude)
    scale = (space.std[channel] / error)[:, None]
    weight = weight * scale * rep.std[channel].reshape(-1)[index]
    std = places_std(rep, space, channel, latitude, longitude) * scale[:, 0]
    group = table.groupby(columns[2:], sort=False).ngroup().to_numpy()
    blocks = Blocks(group, hour, std, np.zeros_like(hour), correlation.cpu().numpy()[None])
    return _Rows(
        torch.from_numpy(index + points * hour[:, None]),
        torch.from_numpy(weight).float(),
        blocks,
        torch.from_numpy(np.concatenate([every for _, _, every in pieces])),
    )


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    b: Tensor,
    precondition: Callable[[Tensor], Tensor],
    tolerance: float = 1e-3,
    iterations: int = 200,
) -> tuple[Tensor, int, float]:
    r"""Solves :math:`A v = b` for symmetric positive definite :math:`A`, a system a member.

    Arguments:
        product: The product with :math:`A`, of vectors :math:`(M, n)`.
        b: The right-hand sides, with shape :math:`(M, n)`.
        precondition: The product with an approximate inverse.
        tolerance: The relative residual at which to stop.
        iterations: The most iterations.

    Returns:
        The solutions, the number of iterations and the largest relative residual
        :math:`\|b - A v\| / \|b\|`, computed anew.
    """
    size = torch.linalg.vector_norm(b, dim=1, keepdim=True).clamp(min=1e-30)
    v, r = torch.zeros_like(b), b
    p = s = precondition(r)
    rs = (r * s).sum(1, keepdim=True)
    steps = 0
    while steps < iterations and bool(
        (torch.linalg.vector_norm(r, dim=1) > tolerance * size[:, 0]).any()
    ):
        q = product(p)
        alpha = rs / (p * q).sum(1, keepdim=True).clamp(min=1e-30)
        v, r = v + alpha * p, r - alpha * q
        s = precondition(r)
        rs, before = (r * s).sum(1, keepdim=True), rs
        p = s + rs / before.clamp(min=1e-30) * p
        steps += 1
    residual = torch.linalg.vector_norm(b - product(v), dim=1, keepdim=True) / size
    return v, steps, float(residual.max())
