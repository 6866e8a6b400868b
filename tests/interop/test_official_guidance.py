r"""Guided windows and trajectories of the published layout, and the numbers that belong to them."""

from __future__ import annotations

import pytest
import torch

from appa.diffusion.guidance import GUIDANCES
from appa.diffusion.likelihood import GaussianLikelihood
from appa.diffusion.trajectory import TrajectoryDenoiser
from appa.tasks.model import Model

from .test_official import agree, expected, model  # noqa: F401 (fixtures)


def likelihood(of: Model, points: torch.Tensor, y: torch.Tensor, variance: torch.Tensor):
    r"""All channels of decoded latents at some grid points, in every hour of a window."""

    def operator(z):
        x = of.decode(z).flatten(3)[..., points]  # (B, W, C, N)
        return x.transpose(2, 3).flatten(1)

    return GaussianLikelihood(operator, y.flatten(), variance)


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_mmps(model, expected, iterations):  # noqa: F811
    seen = likelihood(
        model, expected["mmps.points"], expected["mmps.observations"], expected["mmps.variance"]
    )
    z_t, mean = (expected[f"mmps.gmres_{iterations}.{name}"] for name in ("input", "output"))
    sigma, dates = expected["mmps.sigma"], expected["denoiser.dates"]
    guidance = GUIDANCES["mmps"](solver="gmres", iterations=iterations)
    found = guidance(lambda z: model.denoiser(z, sigma, dates), z_t, sigma, seen)
    agree(found, mean)


def test_guided_trajectory(model, expected):  # noqa: F811
    r"""Windows are guided by what is seen of each, then composed."""
    y, stride = expected["guided_trajectory.observations"], int(expected["trajectory.stride"])
    points, variance = expected["mmps.points"], expected["mmps.variance"]
    window = model.config.window
    seen = [
        likelihood(model, points, y[s : s + window], variance)
        for s in range(0, len(y) - window + 1, stride)
    ]
    trajectory = TrajectoryDenoiser(
        model.denoiser,
        expected["trajectory.dates"].numpy(),
        stride,
        guidance=GUIDANCES["mmps"](solver="gmres", iterations=2),
        likelihoods=seen,
    )
    found = trajectory.mean(
        expected["guided_trajectory.input"], expected["guided_trajectory.sigma"]
    )
    agree(found, expected["guided_trajectory.output"])
