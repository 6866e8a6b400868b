r"""Operators as functions: derivatives, precision, errors, whole fields."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from appa.data.grids import Grid
from appa.data.variables import SURFACE
from appa.errors import DataError
from appa.observations.mixing import slopes_of
from appa.observations.observables import REGISTRY, find, known, observable

from .small_states import (
    SMALL,
    compiled,
    make_space,
    physical,
    points,
    states,
    two_hours,
)


@pytest.fixture
def registry():
    find("10m_wind_speed")
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


@pytest.fixture(scope="module")
def planet():
    return two_hours()


# Derivatives


SHIPPED = [name for name, seen in known().items() if not seen.itself]


@pytest.mark.parametrize("name", ["temperature", "2m_temperature", *SHIPPED])
def test_derivatives(name):
    r"""Of first and second order, for two members."""
    rng = np.random.default_rng(3)
    grid = Grid("equiangular-cells", 2, 2)
    space = make_space(grid, ground=rng.uniform(0, 900, grid.shape))
    rows = points([30.0, -60.0, 89.0], [0.0, 100.0, 300.0], name, 5.0, 2.0, 430.0, elevation=300.0)
    (operator,) = compiled(rows, space)
    x = torch.from_numpy(0.3 * rng.standard_normal((2, *space.shape))).requires_grad_()
    assert operator(x).shape == (2, 3)
    assert gradcheck(operator, x, eps=1e-5, atol=1e-5, rtol=1e-4, fast_mode=True)
    v = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(operator, x, v, eps=1e-5, atol=1e-5, rtol=1e-3, fast_mode=True)
    dx = torch.from_numpy(rng.standard_normal((2, *space.shape)))
    ahead = (operator(x + 1e-5 * dx) - operator(x - 1e-5 * dx)) / 2e-5
    assert torch.allclose(operator.tangent(x, dx), ahead, rtol=1e-4, atol=1e-5)


def test_inflated_errors():
    r"""Whitened by them, everything shrinks alike; the observable's values stay."""
    rng = np.random.default_rng(3)
    space = make_space(SMALL)
    lat, lon = [30.0, -60.0, 80.0], [0.0, 100.0, 300.0]
    rows = pd.concat(
        [points(lat, lon, name, 5.0, 2.0).points for name in ("2m_temperature", "10m_wind_speed")]
    )
    (operator,) = compiled(SimpleNamespace(points=rows, gridded=None), space)
    factor = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 1e6])
    larger = operator.inflate(factor)
    x = torch.from_numpy(rng.standard_normal((2, *space.shape))).float()
    assert torch.allclose(larger.departure(x), operator.departure(x) / factor, rtol=1e-5, atol=0)
    assert torch.equal(larger.error, operator.error * factor)
    assert np.allclose(larger.rows["error"], 2.0 * factor)
    np.testing.assert_allclose(physical(larger, x), physical(operator, x), rtol=1e-4)


@pytest.mark.parametrize("name", SHIPPED)
def test_single_precision_is_enough(planet, name):
    r"""Against the same in double precision: a hundredth of an instrument's error."""
    _, space, x = planet
    error = {"K": 0.3, "m s-1": 0.5, "degree": 5.0, "%": 3.0, "Pa": 50.0, "m": 3.0, "kg m-2": 0.3}
    rng = np.random.default_rng(0)
    lat, lon = np.degrees(np.arcsin(rng.uniform(-1, 1, 300))), rng.uniform(0, 360, 300)
    rows = points(lat, lon, name, 100.0, error[find(name).units], 640.0, elevation=500.0)
    (operator,) = compiled(rows, space)
    away = operator(x[:1]) - operator(x[:1].double())
    assert away.abs().max() < 0.01


def test_noise_is_no_reason_for_an_overflow():
    r"""States still full of noise have finite values and derivatives."""
    space = make_space(SMALL, ground=np.full(SMALL.shape, 700.0))
    x = 8 * torch.randn(2, *space.shape, generator=torch.manual_seed(0))
    for name in SHIPPED:
        rows = points([10.0, -70.0], [20.0, 300.0], name, 5.0, 1.0, 430.0, elevation=300.0)
        (operator,) = compiled(rows, space)
        x.requires_grad_(True)
        value = operator(x)
        (gradient,) = torch.autograd.grad(value.square().sum(), x)
        assert value.isfinite().all(), name
        assert gradient.isfinite().all(), name


# Fields


def test_whole_fields(registry):
    r"""A function of whole fields sees them all, and its result is interpolated."""

    @observable("eddy", units="K", inputs=("2m_temperature",), local=False)
    def eddy(t, *, latitude, longitude, ground):
        assert latitude.shape == (6, 1)
        assert longitude.shape == (8,)
        assert ground.shape == (6, 8)
        return t - t.mean(dim=-1, keepdim=True)

    @observable(
        "shear", units="m s-1", inputs=("u_component_of_wind",), levels="level", local=False
    )
    def shear(u, *, pressure):
        assert pressure.shape == (4, 1, 1)
        return u - u[:, -1:]

    space = make_space(SMALL)
    lam = np.radians(SMALL.longitude)
    field = 280 + SMALL.latitude[:, None] / 3 + 5 * np.cos(lam)
    wind = np.array([40.0, 20.0, 10.0, 4.0])[:, None, None] * np.ones(SMALL.shape)
    x = states(space, **{"2m_temperature": field, "u_component_of_wind": wind})
    (operator,) = compiled(points([15.0, 0.0], [90.0, 67.5], "eddy"), space)
    half_way = 5 * np.cos(np.radians([45, 90])).mean()
    np.testing.assert_allclose(physical(operator, x), [0.0, half_way], atol=1e-4)
    level = [850.0, np.sqrt(500 * 850.0)]
    (operator,) = compiled(points(15.0, 90.0, "shear", level=level), space)
    np.testing.assert_allclose(physical(operator, x), [6.0, 11.0], atol=1e-4)


def test_functions_that_return_something_else(registry):
    observable("flat", units="K", inputs=("2m_temperature",))(lambda t: t.mean(-1))
    space = make_space(SMALL)
    (operator,) = compiled(points([1.0, 2.0], 3.0, "flat"), space)
    with pytest.raises(DataError, match=r"'flat' returned shape \(1,\), expected \(1, 2\)"):
        operator(states(space))


def test_batches_and_precisions():
    space = make_space(SMALL)
    names = [*SURFACE, *SHIPPED]
    (operator,) = compiled(points(40.0, 200.0, names, 1.0, 2.0, 430.0, elevation=10.0), space)
    x = torch.randn(3, *space.shape, generator=torch.manual_seed(0)) / 3
    together = operator(x)
    assert together.dtype == torch.float32
    torch.testing.assert_close(torch.cat([operator(x[k : k + 1]) for k in range(3)]), together)
    last = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(operator(last), together)
    assert operator(x.bfloat16()).dtype == torch.float32
    assert operator(x.double()).dtype == torch.float64
    moved = operator.to("cpu")
    torch.testing.assert_close(moved.departure(x), operator.departure(x))
    assert not operator.linear
    with pytest.raises(DataError, match=r"states have shape \(3, 26, 6, 7\), expected \(B, \*\(26"):
        operator(x[..., :7])


def test_forward_derivatives_too(planet):
    r"""Jacobian times vector in forward mode, against reverse over reverse."""
    _, space, x = planet
    names = [*SURFACE[:4], *SHIPPED]
    (operator,) = compiled(points(40.0, 200.0, names, 1.0, 2.0, 430.0, elevation=10.0), space)
    x, v = x[:1].double(), torch.randn(1, *space.shape, dtype=torch.float64)
    _, forward = torch.func.jvp(operator, (x,), (v,))
    _, reverse = torch.autograd.functional.jvp(operator, x, v)
    torch.testing.assert_close(forward, reverse, rtol=1e-6, atol=1e-8)


def test_what_is_curved(registry):
    r"""Speeds and humidities are; what is linear, or as good as that, and angles are not."""

    @observable("lifted", units="K", inputs=("temperature_500", "2m_temperature"))
    def lifted(upper, lower):
        return upper - lower

    # defined for some steps, as is a user's of humidity; for none; and for some, and straight there
    @observable("logarithm", units="1", inputs=("10m_u_component_of_wind",))
    def logarithm(u):
        return (u - u.mean(dim=0) + 5).log()

    @observable("undefined", units="1", inputs=("10m_u_component_of_wind",))
    def undefined(u):
        return u.sqrt() * u.new_tensor(float("nan"))

    @observable("straight", units="1", inputs=("10m_u_component_of_wind",))
    def straight(u):
        return torch.where(u > u.mean() + 5, u.new_tensor(float("nan")), u)

    expected = {
        "10m_wind_speed": True, "relative_humidity": True, "10m_wind_direction": False,
        "thickness_500_1000": False, "total_column_water_vapour": False, "lifted": False,
        "brightness_temperature_amsua_5": False, "2m_temperature": False,
        "logarithm": True, "undefined": True, "straight": False,
    }  # fmt: skip
    latitude, longitude = np.linspace(-80, 80, 12), np.linspace(0, 350, 12)
    for name, curved in expected.items():
        level = 850.0 if name == "relative_humidity" else np.nan
        rows = points(latitude, longitude, name, level=level)
        (operator,) = compiled(rows, make_space(SMALL))
        assert operator.curved.tolist() == [curved] * 12, name


def test_an_input_that_an_observable_does_not_use(registry):
    r"""Or uses to choose alone: it has no slope."""

    @observable("cold", units="K", inputs=("2m_temperature", "mean_sea_level_pressure"))
    def cold(t, p):
        return t - 280

    space = make_space(Grid("equiangular-cells", 4, 8))
    (operator,) = compiled(points([20.0], [100.0], "cold", 5.0, 2.0), space)
    (slope,) = slopes_of(operator, torch.zeros(1, *space.shape))
    assert slope is not None
    first, second = slope[0, 0].chunk(2)
    assert first.any()
    assert not second.any()
