r"""How well an ensemble fits what it was given, looked at as it is written.

Of an observable, over its observations :math:`y` with errors :math:`\sigma` and over members,

.. math:: \sqrt{\frac{1}{N} \sum \frac{(y - \mathcal{A}(x))^2}{\sigma^2}} ,

which is about 1, or less, where :math:`x` is drawn from the posterior. Residuals of solves do not
tell: each solve is of a linear problem, and a curved observable need not follow.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..observations.operators import HourOperator
from ..observations.parts import Derived, Part
from .background import OUT

__all__ = ["Fit"]

FAR = 3.0  # the fit above which a user is told


class Fit:
    r"""Sums squares of departures, hour by hour.

    Only what is written is compared, since the rest is not known: observations of the hours and
    channels that are given out together. It is compared as it was drawn: what lies between grid
    points of which some are set to zero later, as rain often is, is no matter of the draw.

    Arguments:
        operators: The observations of each hour that is given out.
        errors: Their errors before any were left out.
    """

    def __init__(self, operators: Sequence[HourOperator | None], errors: Sequence[Tensor | None]):
        self.operators, self.errors = operators, errors
        names = {n for op in operators if op is not None for n in op.rows["variable"].unique()}
        self.names = sorted(map(str, names))
        self._rows: dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor]] = {}
        self.sums = self._zeros()

    def _zeros(self) -> Tensor:
        return torch.zeros(len(self.names), 2, dtype=torch.float64)

    def taken(self) -> Tensor:
        r"""The sums of squares and their numbers by observable since the last time, with shape
        :math:`(V, 2)`."""
        sums, self.sums = self.sums, self._zeros()
        return sums

    @torch.no_grad()
    def __call__(self, hour: int, x: Tensor, channels: Sequence[int]) -> None:
        r"""
        Arguments:
            hour: The hour, among those given out.
            x: A standardized state, with shape :math:`(C, H, W)`.
            channels: Which channels of it are as they are written.
        """
        op = self.operators[hour]
        if op is None:
            return
        key = hour, tuple(channels)
        if key not in self._rows:
            which = self._which(hour, op, channels).cpu()
            rows = (which >= 0).nonzero()[:, 0]
            self._rows[key] = rows, which[rows]
        rows, which = self._rows[key]
        if not len(rows):
            return
        squares = op.departure(x[None])[0][rows.to(x.device)].cpu().to(torch.float64).square()
        keep = squares.isfinite()
        which, squares = which[keep], squares[keep]
        self.sums[:, 0] += torch.bincount(which, squares, minlength=len(self.names))
        self.sums[:, 1] += torch.bincount(which, minlength=len(self.names))

    def _which(self, hour: int, op: HourOperator, channels: Sequence[int]) -> Tensor:
        r"""The number of each row's observable, with shape :math:`(n)`; -1 of those that are not
        compared: left out, with an error as good as infinite, or of channels that are not written
        here."""
        codes = pd.Categorical(op.rows["variable"].astype(str), categories=self.names).codes
        which = torch.from_numpy(codes.astype(np.int16)).to(op.y.device)
        written = torch.zeros(op.shape[0], dtype=torch.bool, device=op.y.device)
        written[list(channels)] = True
        size = math.prod(op.shape[1:])
        seen = torch.cat([_written(part, written, size) for part in op.parts])
        error = self.errors[hour]
        used = True if error is None else op.error < 0.5 * OUT * error.to(op.error)
        return torch.where(seen & used, which, -1)

    def attrs(self, sums: Tensor, residual: bool) -> dict[str, Any]:
        r"""The fit as attributes of the ensemble; tells where it is bad.

        Arguments:
            sums: Those of :meth:`taken`, of all members.
            residual: Whether what the decoder lacks was drawn.
        """
        found = {
            name: float(f"{math.sqrt(total / number):.4g}")
            for name, (total, number) in zip(self.names, sums.tolist(), strict=True)
            if number
        }
        far = {name: value for name, value in found.items() if value > FAR}
        if far:
            told = ", ".join(f"{name} by {value:.3g}" for name, value in far.items())
            helps = "take more steps or iterations, or tell larger errors"
            if not residual:
                helps += "; what the decoder cannot express is not drawn here, which may be why"
            warnings.warn(
                f"members miss observations by more than their errors say, in root mean square and "
                f"in errors: {told}, expected about 1; {helps}",
                stacklevel=6,
            )
        return {"fit": json.dumps(found)} if found else {}


def _written(part: Part, written: Tensor, size: int) -> Tensor:
    r"""Which rows of a part see nothing but channels that are written, with shape :math:`(n)`."""
    if part.stencil is not None:
        return written[part.stencil[0] // size].all(dim=-1)
    assert isinstance(part, Derived)  # of whole fields
    whole = all(bool(written[gather.index // size].all()) for gather in part.inputs)
    return torch.full((len(part),), whole, device=written.device)
