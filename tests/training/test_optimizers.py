r"""Optimisers find known minima, schedules pass through known points, averages are sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from appa.errors import ConfigError
from appa.training.distribution import Ranks, load_optimizer, optimizer_state
from appa.training.optimizers import EMA, learning_rate, make_optimizer, set_learning_rate

ALONE = Ranks(0, 1, torch.device("cpu"))


def test_a_quadratic():
    r"""A quadratic of a matrix whose axes are not its entries, with a known minimum: SOAP finds
    those axes, and comes closer than Adam."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(6, 4, generator=generator)
    q = torch.linalg.qr(torch.randn(6, 6, generator=generator))[0]
    a = q @ torch.diag(torch.logspace(-1, 1, 6)) @ q.T
    distance = {}
    for kind in ("soap", "adam"):
        x = nn.Parameter(torch.zeros(6, 4))
        optimizer = make_optimizer(kind, [x], 0.1)
        for s in range(300):
            error = x - target
            (0.5 * (error * (a @ error)).sum()).backward()
            set_learning_rate(optimizer, learning_rate(s, base=0.1, decay="cosine", steps=300))
            optimizer.step()
            optimizer.zero_grad()
        distance[kind] = (x - target).abs().max() / target.abs().max()
    assert distance["soap"] < 1e-2
    assert distance["soap"] < distance["adam"] < 1


def test_soap_on_kernels():
    r"""It recovers the kernels and offsets that made the data."""
    torch.manual_seed(0)
    x = torch.randn(16, 3, 8, 8)
    truth, conv = nn.Conv2d(3, 5, 3), nn.Conv2d(3, 5, 3)
    y = truth(x).detach()
    optimizer = make_optimizer("soap", conv.parameters(), 1e-2)
    for s in range(300):
        (conv(x) - y).square().mean().backward()
        set_learning_rate(optimizer, learning_rate(s, base=2e-2, decay="linear", steps=300))
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(conv.weight, truth.weight, atol=2e-3, rtol=0)
    torch.testing.assert_close(conv.bias, truth.bias, atol=2e-3, rtol=0)


@pytest.mark.parametrize("kind", ["soap", "adam"])
def test_a_saved_optimizer_goes_on_bit_by_bit(kind):
    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 3, 3))

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
        for s in range(first, last):
            x = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(s))
            set_learning_rate(optimizer, 1e-2 / (s + 1))
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    straight = network()
    steps(straight, make_optimizer(kind, straight.parameters(), 1e-2), 0, 25)

    model = network()
    optimizer = make_optimizer(kind, model.parameters(), 1e-2)
    steps(model, optimizer, 0, 13)  # SOAP has a basis and is on the way to its next
    state = optimizer_state(ALONE, optimizer)
    other = network()
    other.load_state_dict(model.state_dict())
    optimizer = make_optimizer(kind, other.parameters(), 1e-2)
    load_optimizer(optimizer, state)
    steps(other, optimizer, 13, 25)
    for p, q in zip(straight.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_learning_rates():
    lr = learning_rate
    assert [lr(s, base=2, decay="none", steps=10, warmup=3) for s in (0, 1, 2, 3, 9)] == [
        0.5,
        1.0,
        1.5,
        2.0,
        2.0,
    ]
    assert [lr(s, base=2, decay="linear", steps=10) for s in (0, 5, 9)] == pytest.approx(
        [2, 1, 0.2]
    )
    assert [lr(s, base=2, decay="linear", steps=12, warmup=2) for s in (2, 7)] == [2, 1]
    expected = [2, 1 + math.cos(math.pi / 4), 1]
    assert [lr(s, base=2, decay="cosine", steps=8) for s in (0, 2, 4)] == pytest.approx(expected)
    # never none while there are updates to do, and none after them
    assert all(lr(s, base=1, decay=d, steps=7) > 0 for s in range(7) for d in ("linear", "cosine"))
    assert lr(9, base=1, decay="linear", steps=7) == 0


def test_unknown_names():
    with pytest.raises(ConfigError, match="did you mean 'adam'"):
        make_optimizer("adan", [nn.Parameter(torch.zeros(2))], 1e-3)
    with pytest.raises(ConfigError, match="did you mean 'linear'"):
        learning_rate(0, base=1, decay="liner", steps=2)


def test_averages():
    r"""The average is the sum of what the weights were, each with its weight."""
    module = nn.Linear(3, 2)
    ema = EMA(module, 0.7)
    history = [[p.detach().double().numpy().copy() for p in module.parameters()]]
    rng = np.random.default_rng(0)
    for s in range(12):
        with torch.no_grad():
            for p in module.parameters():
                p.copy_(torch.from_numpy(rng.normal(size=tuple(p.shape))))
        ema.update(s)
        history.append([p.detach().double().numpy().copy() for p in module.parameters()])
    expected = history[0]
    for s, values in enumerate(history[1:]):
        beta = min(0.7, (1 + s) / (10 + s))
        expected = [beta * e + (1 - beta) * v for e, v in zip(expected, values, strict=True)]
    for average, e in zip(ema.averages, expected, strict=True):
        np.testing.assert_allclose(average.numpy(), e, rtol=1e-5, atol=1e-6)

    before = [p.detach().clone() for p in module.parameters()]
    places = [p.data_ptr() for p in module.parameters()]
    with ema.applied():
        for p, average in zip(module.parameters(), ema.averages, strict=True):
            assert torch.equal(p, average)
    for p, b in zip(module.parameters(), before, strict=True):
        assert torch.equal(p, b)
    assert places == [p.data_ptr() for p in module.parameters()]
