r"""A guided evaluation against its formulas, in double precision: each product with the Jacobian
computes the primal again, and the solver is azula's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from azula.linalg.solve import gmres

from appa.diffusion.guidance.mmps import MMPS
from appa.observations.errors import WindowCovariance
from appa.observations.operators import StateSpace, compile_observations
from appa.tasks.likelihood import StatesLikelihood
from appa.tasks.loading import load

from . import small
from .test_plan import START, observed

SIGMA = 0.3


@pytest.mark.parametrize("at_once", [None, 1])
def test_an_evaluation_is_what_its_formulas_say(tmp_path, at_once):
    r"""With hours decoded together or one by one, to some dozens of roundings of 1e-16."""
    model = load(small.write_model(tmp_path, denoiser=True))
    generator = torch.manual_seed(0)
    for parameter in model.denoiser.parameters():  # the last layer is zero when fresh
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.autoencoder.double()
    model.denoiser.double()
    hours = np.datetime64(START) + np.arange(4) * np.timedelta64(1, "h")
    space = StateSpace.of(model)
    operators = compile_observations(observed([0, 1, 3]), space, hours)
    seen = [(hour, op) for hour, op in enumerate(operators) if op is not None]
    covariance = WindowCovariance(operators, None, space, "none")  # the identity
    z_t = torch.randn(2, 4, *model.config.latent_shape, generator=generator, dtype=torch.double)

    def denoise(z: torch.Tensor) -> torch.Tensor:
        return model.denoiser(z, SIGMA, hours)

    likelihood = StatesLikelihood(model, operators, covariance, at_once)
    found = MMPS(iterations=3)(denoise, z_t, SIGMA, likelihood)
    assert found.dtype == torch.double

    z = z_t.clone().requires_grad_()
    mean = denoise(z)

    def departure(states: torch.Tensor) -> torch.Tensor:
        return torch.cat([op.departure(model.decode(states[:, t])) for t, op in seen], dim=1)

    y = departure(mean)

    def product(v: torch.Tensor) -> torch.Tensor:
        w = SIGMA**2 * torch.autograd.grad(y, z, -v, retain_graph=True)[0]
        return v - torch.func.jvp(departure, (mean.detach(),), (w,))[1]

    v = gmres(product, y.detach(), iterations=3)
    plain = mean.detach() + SIGMA**2 * torch.autograd.grad(y, z, -v)[0]
    assert (plain - mean).norm() > 1e-3 * mean.norm()  # observations say something
    assert (found - plain).norm() < 1e-13 * (plain - mean).norm()
