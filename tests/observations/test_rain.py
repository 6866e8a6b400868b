r"""Rain: its moments against integrals, and its continuation against that of anything else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from appa.data.grids import Grid
from appa.observations.rain import Above, bounded
from appa.observations.residual import ResidualSampler

from .test_residual import T2M, space_and_rep


@pytest.mark.parametrize("above", [0.01, 0.1, 0.5, 1.0, 3.0, 30.0])
def test_rain_is_nowhere_negative_and_has_its_mean_and_variance(above):
    r"""Of a standard normal u, integrated by rule: the moments of a + s u', of some a / s, are a
    and k s a."""
    u = torch.linspace(-9, 9, 180_001, dtype=torch.float64)
    std = torch.tensor([[0.3]], dtype=torch.float64)
    a = above * std.expand(1, len(u), 1, 1)
    turned = bounded(u[None, :, None, None], Above(a, 1.2), std)
    x = (a + std * turned).flatten()
    assert (x > -1e-12).all()
    density = torch.exp(-u * u / 2) / (2 * np.pi) ** 0.5
    mean = torch.trapezoid(density * x, u)
    variance = torch.trapezoid(density * (x - mean) ** 2, u)
    assert mean.item() == pytest.approx(0.3 * above, rel=1e-3)
    assert variance.item() == pytest.approx(1.2 * 0.09 * above, rel=5e-3)
    assert (x.diff() > -1e-12).all()


def test_without_rain_there_is_none():
    std = torch.full((2, 3), 0.4)
    u = torch.randn(1, 5, 2, 3, generator=torch.Generator().manual_seed(0))
    dry = torch.tensor([0.0, -0.1, 0.0]).expand(1, 5, 2, 3)
    there = Above(dry, 1.2)
    assert torch.allclose(dry + std * bounded(u, there, std), torch.zeros(5, 2, 3), atol=1e-6)
    assert torch.equal(bounded(u, there, 0 * std), u)


def test_far_above_zero_it_goes_on_as_anything_does():
    r"""Where its variance is s² too, and hours before are none of the rare ones."""
    grid, past, hours = Grid("equiangular-cells", 4, 6), 3, 5
    space, rep = space_and_rep(grid, (T2M,), 0.2 * np.ones(grid.shape))
    sampler = ResidualSampler(rep, space)
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(2, hours, sampler.prior(0, hours).space.size, generator=generator)

    def noise(shape, *step):
        return given.reshape(2, *shape)

    before = 0.2 * torch.randn(2, past, 1, *grid.shape, generator=generator).clip(-2, 2)
    far = Above(torch.full((2, 1 + past + hours, *grid.shape), 6.0), 0.2 / 6)
    free = sampler.forward(before, hours, noise)
    assert torch.allclose(sampler.forward(before, hours, noise, above={0: far}), free, atol=1e-5)
    # near it, the same hours before leave more rain where there was more than was decoded
    near = Above(torch.full((2, past + hours, *grid.shape), 0.1), 1.0)
    wet, dry = (
        sampler.forward(r * torch.ones_like(before), hours, noise, above={0: near})
        for r in (0.2, -0.1)
    )
    assert (wet >= dry - 1e-6).all()
    assert wet[:, 0].mean() > dry[:, 0].mean() + 0.01
    assert (dry + 0.1 > -1e-6).all()
