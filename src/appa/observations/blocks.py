r"""Covariances of observations that fall apart into blocks, one for each place's hours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError

__all__ = ["Blocks", "Inverses"]

Array = NDArray[np.float64]


class Blocks:
    r"""The matrix :math:`I + S K S`, block by block, known by its factors of Cholesky.

    Arguments:
        group: Which observations share a block, as whole numbers, with shape :math:`(N)`.
        hour: Their hours, with shape :math:`(N)`.
        std: The diagonal of :math:`S`, with shape :math:`(N)`.
        kind: Which row of the table is theirs, with shape :math:`(N)`.
        table: Correlations at lags of 0, 1, … hours, with shape :math:`(*, T)`.
    """

    def __init__(
        self,
        group: NDArray[np.int64],
        hour: NDArray[np.int64],
        std: Array,
        kind: NDArray[np.int64],
        table: Array,
    ):
        self.variance = torch.from_numpy(1 + std**2).float()
        self.blocks: list[tuple[Tensor, Tensor]] = []  # rows (G, n), and factors (G, n, n)
        if not np.any(std):  # the identity, of as many as there are
            return
        order = np.argsort(group, kind="stable")
        start = np.flatnonzero(np.diff(group[order], prepend=-1)) if len(group) else order
        size = np.diff(start, append=len(group))
        for n in np.unique(size[size > 1]):
            rows = order[start[size == n][:, None] + np.arange(n)]
            lag = np.abs(hour[rows][:, :, None] - hour[rows][:, None])
            matrix = table[kind[rows][:, :1, None], lag].astype(np.float64)
            matrix = std[rows][:, :, None] * matrix * std[rows][:, None] + np.eye(n)
            try:  # in double precision: rounded, a matrix may not have a factor
                factor = np.linalg.cholesky(matrix)
            except np.linalg.LinAlgError as error:
                raise DataError(
                    "errors of observations are too small beside what states of the model lack, "
                    f"by a factor of {std.max():.1g}; give larger errors, or --representation none"
                ) from error
            self.blocks.append((torch.from_numpy(rows), torch.from_numpy(factor).float()))

    def to(self, device: torch.device | str) -> Blocks:
        r"""Moves it, and returns it."""
        self.variance = self.variance.to(device)
        self.blocks = [(rows.to(device), factor.to(device)) for rows, factor in self.blocks]
        return self

    def color(self, eps: Tensor) -> Tensor:
        r"""Vectors with this covariance, of standard normal ones :math:`(*, N)`."""
        out = eps * self.variance.to(eps.dtype).sqrt()
        for rows, factor in self.blocks:
            out[..., rows] = _product(factor.to(eps.dtype), eps[..., rows])
        return out

    def whiten(self, v: Tensor, transposed: bool = False) -> Tensor:
        r"""The product of :math:`L^{-1}`, or of its transpose, with vectors :math:`(*, N)`, of the
        matrix :math:`L L^\top`."""
        out = v / self.variance.to(v.dtype).sqrt()
        for rows, factor in self.blocks:
            factor = (factor.mT if transposed else factor).to(v.dtype)
            part = v[..., rows].reshape(-1, *rows.shape).permute(1, 2, 0)  # (G, n, *)
            part = torch.linalg.solve_triangular(factor, part, upper=transposed)
            out[..., rows] = part.permute(2, 0, 1).reshape(*v.shape[:-1], *rows.shape)
        return out

    def solve(self, v: Tensor) -> Tensor:
        r"""The product of the inverse with vectors :math:`(*, N)`."""
        out = v / self.variance.to(v.dtype)
        for rows, factor in self.blocks:
            part = v[..., rows].reshape(-1, *rows.shape).permute(1, 2, 0)  # (G, n, *)
            part = torch.cholesky_solve(part, factor.to(v.dtype))
            out[..., rows] = part.permute(2, 0, 1).reshape(*v.shape[:-1], *rows.shape)
        return out


class Inverses:
    r"""The inverses of several such matrices with the same blocks, :math:`K` of them.

    Arguments:
        parts: The matrices.
    """

    def __init__(self, parts: Sequence[Blocks]):
        self.variance = torch.stack([part.variance for part in parts])[:, None]
        together = zip(*(part.blocks for part in parts), strict=True)
        self.blocks = [
            (of[0][0], torch.cholesky_inverse(torch.stack([factor for _, factor in of])))
            for of in together
        ]

    def matmul(self, v: Tensor) -> Tensor:
        r"""The products with vectors :math:`(K, M, N)`."""
        out = v / self.variance
        for rows, inverse in self.blocks:
            out[..., rows] = torch.einsum("kgij,kmgj->kmgi", inverse, v[..., rows])
        return out


def _product(matrix: Tensor, v: Tensor) -> Tensor:
    # A batch of tiny matrices is faster as a sum than as matrix products.
    if matrix.shape[-1] <= 4:
        return (matrix * v.unsqueeze(-2)).sum(-1)
    return torch.einsum("gij,...gj->...gi", matrix, v)
