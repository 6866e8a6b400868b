r"""The loss is the formula, evaluated in double precision by other means."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from appa.data.grids import Grid
from appa.data.variables import LEVELS, channels
from appa.errors import DataError
from appa.training.losses import WeightedError, channel_weights

GRID = Grid("equiangular", 9, 16)
CHANNELS = channels(("2m_temperature", "sea_surface_temperature"), ("temperature",), (500, 1000))
LAND = np.zeros(GRID.shape, bool)
LAND[2:5, 4:11] = True


def states(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (n, len(CHANNELS), *GRID.shape)
    x = rng.normal(size=shape).astype(np.float32)
    return x, x + 0.1 * rng.normal(size=shape).astype(np.float32)


def formula(x: np.ndarray, y: np.ndarray, weights: list[float], land: bool) -> list[float]:
    r"""Cell by cell: each counts by its area on the sphere, SST over the sea alone."""
    losses = []
    for state, other in zip(x.astype(np.float64), y.astype(np.float64), strict=True):
        total = 0.0
        for c, weight in enumerate(weights):
            here = (
                ~LAND
                if land and CHANNELS[c].variable == "sea_surface_temperature"
                else ~LAND | LAND
            )
            square = (state[c] - other[c]) ** 2
            total += weight * (square * GRID.area)[here].sum() / GRID.area[here].sum()
        losses.append(total / sum(weights))
    return losses


@pytest.mark.parametrize("land", [True, False])
@pytest.mark.parametrize("levels", [True, False])
def test_the_formula(land, levels):
    # temperature at 500 and 1000 hPa shares one weight, 1 : 2
    weights = [1.0, 0.1, 1 / 3, 2 / 3] if levels else [1.0] * 4
    x, y = states(3)
    error = WeightedError(CHANNELS, GRID.weights, LAND if land else None, levels)
    loss = error(torch.from_numpy(y), torch.from_numpy(x))
    # 144 terms in single precision
    np.testing.assert_allclose(loss.numpy(), formula(x, y, weights, land), rtol=2e-6)


def test_undefined_places_do_not_count():
    x, y = (torch.from_numpy(a) for a in states(2))
    error = WeightedError(CHANNELS, GRID.weights, LAND)
    other = y.clone().requires_grad_()
    loss = error(other, x)
    loss.sum().backward()
    assert (other.grad[:, 1][:, torch.from_numpy(LAND)] == 0).all()
    assert (other.grad[:, 0] != 0).all()
    y[:, 1][:, torch.from_numpy(LAND)] = 1e6
    assert torch.equal(error(y, x), loss)


def test_errors_are_by_channel():
    r"""An error of 2 everywhere in one channel is 4 there, at any latitude, land or not."""
    x, _ = (torch.from_numpy(a) for a in states(2))
    for c in range(len(CHANNELS)):
        y = x.clone()
        y[:, c] += 2
        errors = WeightedError(CHANNELS, GRID.weights, LAND).errors(y, x)
        expected = torch.zeros(2, len(CHANNELS))
        expected[:, c] = 4
        torch.testing.assert_close(errors, expected, rtol=1e-5, atol=1e-6)


def test_half_precision_is_summed_in_single():
    x, y = (torch.from_numpy(a) for a in states(2))
    error = WeightedError(CHANNELS, GRID.weights)
    loss = error(y.bfloat16(), x.half())
    assert loss.dtype == torch.float32
    expected = error(y.bfloat16().float(), x.half().float())
    torch.testing.assert_close(loss, expected)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(error(y.bfloat16(), x.half()), expected, rtol=1e-6, atol=0)


def test_weights_of_lam_et_al():
    r"""In their code the loss of a variable is a mean over levels weighted by p / mean(p), and
    variables are summed: with weight 1 on levels and at 2 m, 0.1 at the surface else."""
    names = channels()
    w = channel_weights(names)
    rng = np.random.default_rng(1)
    errors = rng.uniform(size=len(names))
    p = np.array(LEVELS, float)
    surface = np.array([1.0, 0.1, 0.1, 0.1, 0.1, 0.1]) @ errors[:6]
    atmospheric = sum(
        (p / p.mean() * errors[6 + 13 * k : 6 + 13 * (k + 1)]).mean() for k in range(5)
    )
    # a constant factor apart: theirs is a sum over variables
    total = 5 + 1.5
    np.testing.assert_allclose((w * errors).mean(), (surface + atmospheric) / total, rtol=1e-12)
    assert w.mean() == pytest.approx(1)
    assert (channel_weights(names, level_weights=False) == 1).all()
    more = channel_weights(names, False, {"2m_temperature": 4.0, "specific_humidity": 0.5})
    np.testing.assert_allclose(more / more[1], [4.0] + [1.0] * 57 + [0.5] * 13)
    assert more.mean() == pytest.approx(1)


def test_masks_that_cannot_be():
    with pytest.raises(DataError, match=r"shape \(16, 9\), expected \(9, W\)"):
        WeightedError(CHANNELS, GRID.weights, LAND.T)
    with pytest.raises(DataError, match="undefined everywhere"):
        WeightedError(CHANNELS, GRID.weights, np.ones_like(LAND))
