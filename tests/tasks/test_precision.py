r"""Networks in half precision: the rounding that it has, and no more."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from appa.diffusion.guidance.mmps import MMPS
from appa.observations.errors import WindowCovariance
from appa.observations.operators import StateSpace, compile_observations
from appa.tasks.folders import ModelError
from appa.tasks.likelihood import StatesLikelihood
from appa.tasks.loading import load
from appa.tasks.model import Model
from appa.tasks.precision import Precision

from . import small
from .test_plan import START, observed

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    folder = tmp_path_factory.mktemp("precision") / "small"
    folder.mkdir()
    found = load(small.write_model(folder, denoiser=True))
    generator = torch.manual_seed(0)
    for parameter in found.denoiser.parameters():  # the last layer is zero when fresh
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return found


@pytest.mark.parametrize(("name", "rounding"), [("bfloat16", 2.0**-9), ("float16", 2.0**-12)])
@pytest.mark.parametrize("at_once", [None, 1])
def test_a_guided_evaluation_is_close(model, name, rounding, at_once):
    r"""Errors are some dozens of roundings, and not none; vectors stay in single precision, and
    attention sees half."""
    hours = np.datetime64(START) + np.arange(4) * np.timedelta64(1, "h")
    space = StateSpace.of(model)
    operators = compile_observations(observed([0, 1, 3]), space, hours)
    covariance = WindowCovariance(operators, None, space, "none")
    z_t = torch.randn(2, 4, *model.config.latent_shape, generator=torch.manual_seed(0))
    seen: list[torch.dtype] = []

    def evaluate(precision: Precision) -> torch.Tensor:
        likelihood = StatesLikelihood(model, operators, covariance, at_once, precision)
        denoiser = precision.denoiser(model.denoiser)
        return MMPS(iterations=3)(lambda z: denoiser(z, 0.3, hours), z_t, 0.3, likelihood)

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is F.scaled_dot_product_attention:
                seen.extend(x.dtype for x in args)
            return func(*args, **(kwargs or {}))

    expected = evaluate(Precision("float32", CPU))
    # without oneDNN, whose kernels some CPUs do not survive
    with torch.backends.mkldnn.flags(enabled=False), Watch():
        found = evaluate(Precision(name, CPU))
    assert found.dtype == torch.float32
    assert set(seen) == {getattr(torch, name)}
    correction = (expected - model.denoiser(z_t, 0.3, hours)).norm()
    assert rounding / 8 < (found - expected).norm() / correction < 64 * rounding


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e6])
def test_products_of_any_size(model, size):
    r"""In `float16`, what is far below or above one would be lost."""
    precision = Precision("float16", CPU)
    z = torch.randn(2, 4, *model.config.latent_shape, generator=torch.manual_seed(1))
    v = torch.randn(z.shape, generator=torch.manual_seed(2))
    denoiser = precision.denoiser(model.denoiser)
    clock = torch.zeros(4, 4)
    with torch.backends.mkldnn.flags(enabled=False):
        z.requires_grad_()
        with torch.enable_grad():
            mean = denoiser(z, 0.3, clock)
            exact = model.denoiser(z, 0.3, clock)
            with precision():
                x, product = model.linearize(z)
            states, changes = model.linearize(z)
        dx = torch.randn(states.shape, generator=torch.manual_seed(3))
        pairs = [
            (torch.autograd.grad(mean, z, size * v)[0], torch.autograd.grad(exact, z, v)[0]),
            (product(size * v), changes(v)),
            (torch.autograd.grad(x.float(), z, dx)[0], torch.autograd.grad(states, z, dx)[0]),
        ]
    sizes = size, size, 1.0
    for (found, expected), by in zip(pairs, sizes, strict=True):
        assert (found / by - expected).norm() < 0.01 * expected.norm()


def test_numbers_that_float16_does_not_have(model):
    r"""Are told where they are made, and not only in the end."""
    hours = np.datetime64(START) + np.arange(4) * np.timedelta64(1, "h")
    z = torch.randn(1, 4, *model.config.latent_shape, generator=torch.manual_seed(0))
    half = Precision("float16", CPU).denoiser(model.denoiser)
    with torch.backends.mkldnn.flags(enabled=False), torch.no_grad():
        assert half(z, 0.3, hours).isfinite().all()
        with pytest.raises(ModelError, match=r"65,504.*--precision bfloat16"):
            half(1e6 * z, 1e-3, hours)


def test_the_precision_of_a_device():
    assert Precision("auto", CPU).dtype == torch.float32
    assert Precision("auto", torch.device("cuda")).dtype == torch.float16
    assert Precision("bfloat16", CPU).size == 2
