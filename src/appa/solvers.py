r"""Solvers of linear systems :math:`A x = b` known by products with :math:`A`.

Both run for a number of iterations or until the residual
:math:`\| b - A x \| \leq \epsilon \, \| b \|`, and say how large it is. Each member of a batch
stops by itself, so that its solution does not depend on the others. Where products with :math:`A`
are made of those with another matrix, :math:`A = D C`, both may be given: a solution is a sum of
vectors that were multiplied, and :math:`C x` is that of their products.
(:mod:`azula.linalg.solve` has the same methods for a fixed number of iterations, without
residuals.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["SOLVERS", "Product", "Solution", "cg", "gmres"]

#: The products :math:`A x`, with shape :math:`(B, N)`, and those :math:`C x`, with shape
#: :math:`(B, *)`, if any.
Product = Callable[[Tensor], "Tensor | tuple[Tensor, Tensor]"]


class Solution(NamedTuple):
    r"""What a solver gives."""

    x: Tensor
    r"""The solution, with shape :math:`(B, N)`."""
    residual: Tensor
    r"""The residual :math:`\| b - A x \| / \| b \|`, with shape :math:`(B)`."""
    iterations: int
    r"""The number of products with :math:`A`."""
    image: Tensor | None = None
    r"""The product :math:`C x`, where :math:`A` gives those with some :math:`C` too."""


def gmres(A: Product, b: Tensor, iterations: int = 2, tolerance: float = 0.0) -> Solution:
    r"""Generalized minimal residuals: :math:`A` may be non-symmetric.

    Arguments:
        A: The products :math:`x \mapsto A x`.
        b: The right-hand sides, with shape :math:`(B, N)`.
        iterations: The largest number of iterations.
        tolerance: The relative residual :math:`\epsilon` at which to stop.
    """
    dtype = torch.promote_types(b.dtype, torch.float64)  # of scalars; vectors keep the precision
    tiny = torch.finfo(b.dtype).tiny
    iterations = max(1, min(iterations, b.shape[1]))  # of nothing at all, one makes the products
    norm = b.norm(dim=1, dtype=dtype)
    basis = [b / norm.clip(min=tiny).to(b)[:, None]]
    # the QR factorization of the Hessenberg matrix, column by column, and what is left of b
    R = torch.zeros(len(b), iterations, iterations, dtype=dtype, device=b.device)
    g = torch.zeros(len(b), iterations + 1, dtype=dtype, device=b.device)
    g[:, 0] = norm
    rotations: list[tuple[Tensor, Tensor]] = []
    residual = torch.ones_like(norm)
    going, done = norm > 0, 0
    images: list[Tensor] = []

    for j in range(iterations):
        w, image = _both(A(basis[j]))
        images += [] if image is None else [image]
        h = []
        for v in basis:
            product = torch.linalg.vecdot(v, w).to(dtype)
            w = w - product.to(w)[:, None] * v
            h.append(product)
        left = w.norm(dim=1, dtype=dtype)
        basis.append(w / left.clip(min=tiny).to(w)[:, None])
        for i, (c, s) in enumerate(rotations):
            h[i], h[i + 1] = c * h[i] + s * h[i + 1], c * h[i + 1] - s * h[i]
        r = torch.hypot(h[j], left).clip(min=tiny)
        c, s = h[j] / r, left / r
        rotations.append((c, s))
        h[j] = r
        R[:, : j + 1, j] = torch.stack(h, dim=1)
        # A member that has arrived takes nothing from further iterations.
        g[:, j + 1], g[:, j] = -s * g[:, j], torch.where(going, c * g[:, j], 0)
        residual = torch.where(going, (g[:, j + 1] / norm.clip(min=tiny)).abs(), residual)
        going, done = going & (residual > tolerance), j + 1
        if not going.any():
            break

    y = torch.linalg.solve_triangular(R[:, :done, :done], g[:, :done, None], upper=True)
    x = torch.zeros_like(b)
    for j in range(done):
        x = x + _times(y[:, j, 0], basis[j])
    image = None
    for j, part in enumerate(images):
        image = _times(y[:, j, 0], part) + (0 if image is None else image)
    return Solution(x, torch.where(norm > 0, residual, 0).to(b), done, image)


def cg(
    A: Product,
    b: Tensor,
    iterations: int = 2,
    tolerance: float = 0.0,
    precondition: Callable[[Tensor], Tensor] | None = None,
) -> Solution:
    r"""Conjugate gradients: :math:`A` must be symmetric and positive definite.

    Arguments:
        A: The products :math:`x \mapsto A x`.
        b: The right-hand sides, with shape :math:`(B, N)`.
        iterations: The largest number of iterations.
        tolerance: The relative residual :math:`\epsilon` at which to stop.
        precondition: The products :math:`x \mapsto P x` with an approximation :math:`P` of
            :math:`A^{-1}`, symmetric and positive definite too.
    """
    dtype = torch.promote_types(b.dtype, torch.float64)
    tiny = torch.finfo(b.dtype).tiny

    def dot(v: Tensor, w: Tensor) -> Tensor:
        return torch.linalg.vecdot(v, w).to(dtype)

    x, r = torch.zeros_like(b), b
    p = b if precondition is None else precondition(b)
    rr = start = dot(b, b)
    rs = rr if precondition is None else dot(b, p)
    going, done, total = start > 0, 0, None
    for i in range(iterations):  # in finite precision, more than N of them may be needed
        Ap, image = _both(A(p))
        curvature = dot(p, Ap)
        going = going & (curvature > 0)  # a direction without, and rounding or A is at fault
        alpha = torch.where(going, rs / curvature.clip(min=tiny), 0).to(b)[:, None]
        x, r = x + alpha * p, r - alpha * Ap
        if image is not None:
            total = _times(alpha[:, 0], image) + (0 if total is None else total)
        s = r if precondition is None else precondition(r)
        square = dot(r, r)
        new = square if precondition is None else dot(r, s)
        p = s + torch.where(going, new / rs.clip(min=tiny), 0).to(b)[:, None] * p
        rr, rs = torch.where(going, square, rr), torch.where(going, new, rs)
        done = i + 1
        going = going & (rr > tolerance**2 * start)
        if not going.any():
            break
    return Solution(x, torch.sqrt(rr / start.clip(min=tiny)).to(b), done, total)


def _both(found: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
    return found if isinstance(found, tuple) else (found, None)


def _times(scale: Tensor, x: Tensor) -> Tensor:
    return scale.to(x).view(-1, *[1] * (x.ndim - 1)) * x


SOLVERS: dict[str, Callable[..., Solution]] = {"gmres": gmres, "cg": cg}
