r"""A prior whose denoiser is known: a stationary Gaussian process in time, one number an hour."""

import numpy as np
import torch
import torch.nn as nn

from appa.diffusion.denoiser import Denoiser
from appa.diffusion.schedule import RectifiedSchedule


def covariance(hours: int, memory: float = 12.0) -> torch.Tensor:
    r"""Of a damped oscillation, :math:`(1 + \tau) e^{-\tau}` at distance :math:`\tau` in units of
    the memory: smooth in time, as weather is."""
    lag = torch.arange(hours, dtype=torch.float64)
    tau = (lag[:, None] - lag).abs() / memory
    return (1 + tau) * torch.exp(-tau)


class Backbone(nn.Module):
    r"""What a transformer trained to the end on the process would compute."""

    def __init__(self, window: int, channels: int = 1):
        super().__init__()
        self.channels, self.shape = channels, (window, 1, 1)
        self.cov = nn.Parameter(covariance(window), requires_grad=False)

    def forward(self, z, c, clock):
        sigma = torch.exp(c / 10).view(-1, 1, 1).to(self.cov)
        scale = torch.sqrt(sigma**2 + 1)
        z_t = scale * z.flatten(2).to(self.cov)
        eye = torch.eye(len(self.cov), dtype=self.cov.dtype)
        mean = self.cov @ torch.linalg.solve(self.cov + sigma**2 * eye, z_t)
        return ((mean - z_t / scale**2) * scale / sigma).view(z.shape).to(z)


def denoiser(window: int = 24, channels: int = 1) -> Denoiser:
    return Denoiser(Backbone(window, channels), RectifiedSchedule())


def hours(n: int) -> np.ndarray:
    return np.datetime64("2021-03-21T00") + np.arange(n)
