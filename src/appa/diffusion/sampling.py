r"""Drawing trajectories of latents from the prior.

The reverse diffusion goes from :math:`z_T \sim \mathcal{N}(0, (1 + \sigma_\max^2) I)` down to
:math:`\sigma_\min` by a third-order multi-step method on an even grid of :math:`\log \sigma`
(:class:`azula.sample.xEABSampler`): the probability flow, one evaluation a step, no noise but the
first. On Gaussian processes its covariance is within 2 % of exact with 32 steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from azula.sample import xEABSampler
from torch import Tensor

from ..data.clock import as_datetime64
from ..progress import progress
from .denoiser import Denoiser
from .trajectory import TrajectoryDenoiser, padded_length

__all__ = ["draw", "initial_noise"]


class Sampler(xEABSampler):
    r"""The sampler, with our progress."""

    def progress_bar(self, it: Iterable[Tensor]) -> Iterator[Tensor]:
        steps = list(it)
        with progress(len(steps), "drawing", unit="steps") as p:
            for t in steps:
                yield t
                p.advance()


def initial_noise(members: Iterable[int], shape: tuple[int, ...], seed: int) -> Tensor:
    r"""Standard normal noise, with shape :math:`(M, *)`; a member's depends on nothing but the
    seed and its own number, so that members may be drawn in any order, or apart."""
    noise = []
    for member in members:
        state = np.random.SeedSequence([seed, member]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))
        noise.append(torch.randn(shape, generator=generator))
    return torch.stack(noise)


@torch.no_grad()
def draw(
    denoiser: Denoiser,
    dates: Any,
    members: int | Iterable[int] = 1,
    *,
    stride: int,
    steps: int = 64,
    seed: int = 0,
    batch: int | None = None,
) -> Tensor:
    r"""Draws trajectories of standardized latents from the prior.

    Arguments:
        denoiser: The denoiser of windows.
        dates: The hours, `datetime64` with shape :math:`(L)`, any :math:`L \geq 1`, or
            :math:`(M, L)` where members have hours of their own.
        members: How many members :math:`M`, or which.
        stride: The hours :math:`\Delta` between windows.
        steps: The number of steps, each one evaluation.
        seed: The seed.
        batch: The number of windows denoised at once. By default, all.

    Returns:
        Standardized latents, with shape :math:`(M, L, C, H, W')`.
    """
    members = range(members) if isinstance(members, int) else list(members)
    hours = as_datetime64(dates)
    length = hours.shape[-1]
    extra = padded_length(length, denoiser.window, stride) - length
    later = hours[..., -1:] + np.arange(1, extra + 1) * np.timedelta64(3600, "s")
    trajectory = TrajectoryDenoiser(
        denoiser, np.concatenate((hours, later), axis=-1), stride, batch
    )

    place = next(denoiser.parameters())
    shape = (length + extra, *denoiser.latent_shape)
    noise = initial_noise(members, shape, seed).to(place)
    sampler = Sampler(trajectory, order=3, steps=steps)
    _, sigma = trajectory.schedule(torch.ones(()))
    z = sampler(noise * torch.sqrt(1 + sigma.to(place) ** 2))
    return z[:, :length]
