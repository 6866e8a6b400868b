r"""What is fused against what is not. Kernels are traced as on a GPU, but run operation by
operation: making them would take most of the time."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from appa.nn import fusing
from appa.nn.fusing import pixelwise, tokenwise

from .test_transformer import inputs, transformer


@pytest.fixture
def everywhere(monkeypatch):
    monkeypatch.setattr(fusing, "DEVICES", ("cpu",))
    monkeypatch.setattr(fusing, "LARGE", 1)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch.compiler.reset()
    counters.clear()


def scaled(x, y, a):
    r"""Two outputs of two inputs with tokens, and one that they share."""
    z = (1 + a) * torch.nn.functional.layer_norm(x, x.shape[-1:])
    return z * y, torch.sigmoid(z) - y


def arguments(requires=()):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 5, 4), (2, 5, 4), (2, 1, 4)
    found = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    for i in requires:
        found[i].requires_grad_()
    return found


def products(net, precision=nullcontext):
    r"""A transformer's output without a graph and with it, and two products from one graph, which
    are taken outside of the context of a precision, as guidance takes them."""
    z, c, clock = (x.to(net.positions) for x in inputs())
    with precision():
        with torch.no_grad():
            alone = net(z, c, clock)
        y = net(z.requires_grad_(), c, clock)
    v = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=y.dtype).to(y)
    back = [torch.autograd.grad(y, z, u, retain_graph=True)[0] for u in (v, v.flip(1))]
    return [alone, y.detach(), *back]


def test_a_fused_transformer_is_the_same(everywhere, monkeypatch):
    net = transformer().requires_grad_(False)
    with monkeypatch.context() as plain:
        plain.setattr(fusing, "FUSED", False)
        expected = products(net)
    assert not counters["stats"]
    found = products(net)
    assert counters["stats"]["unique_graphs"] >= 6  # three functions, there and back
    assert not counters["graph_break"]
    for a, b in zip(found, expected, strict=True):
        assert b.abs().max() > 0.1
        assert torch.allclose(a, b, rtol=0, atol=1e-12)
    net.checkpointing = True
    again = products(net)
    assert all(torch.equal(a, b) for a, b in zip(again, found, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_of_a_gpu_are_the_same(monkeypatch):
    r"""Made by its compiler; in half precision, to ten roundings of it."""
    monkeypatch.setattr(fusing, "LARGE", 1)
    net = transformer().requires_grad_(False).cuda()
    for kind, error in ((torch.float64, 1e-12), (torch.float16, 10 * 2.0**-11)):
        net.double() if kind == torch.float64 else net.float()
        precision = partial(torch.autocast, "cuda", kind, enabled=kind == torch.float16)
        found = products(net, precision)
        with monkeypatch.context() as plain:
            plain.setattr(fusing, "FUSED", False)
            expected = products(net, precision)
        for a, b in zip(found, expected, strict=True):
            assert (a - b).abs().max() < error * b.abs().max()


@pytest.mark.parametrize("requires", [(0,), (1,), (0, 1)])
def test_products_of_several_outputs(everywhere, requires):
    r"""With respect to those that ask for them, also where one output is left alone."""
    kernel = tokenwise(scaled)
    for weights in ((1.0, 2.0), (1.0, 0.0)):
        gradients = []
        for function in (scaled, kernel):
            given = arguments(requires)
            y, z = function(*given)
            loss = (weights[0] * y.square()).sum()
            loss = loss + (weights[1] * z.square()).sum() if weights[1] else loss
            gradients.append(torch.autograd.grad(loss, [given[i] for i in requires]))
        for a, b in zip(*gradients, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-12)
    assert counters["stats"]["unique_graphs"] == 2


def test_what_tokens_share_is_trained_without_kernels(everywhere):
    r"""Nor are other derivatives taken of kernels: forward, and by function transforms."""
    kernel = tokenwise(scaled)
    given = arguments((0, 2))
    y, _ = kernel(*given)
    y.square().sum().backward()
    assert given[2].grad.abs().max() > 0.1
    x, y, a = arguments()
    found = torch.func.jvp(lambda x: kernel(x, y, a), (x,), (y,))[1]
    expected = torch.func.jvp(lambda x: scaled(x, y, a), (x,), (y,))[1]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not counters["stats"]


def test_where_no_compiler_works(everywhere, monkeypatch):
    def fail(function):
        def call(*_):
            raise RuntimeError("no compiler")

        return call

    monkeypatch.setattr(torch, "compile", fail)
    kernel, given = tokenwise(scaled), arguments((0,))
    with pytest.warns(UserWarning, match="scaled is not compiled: no compiler"):
        y, z = kernel(*given)
    with pytest.warns(UserWarning, match="scaled, transposed, is not compiled: no compiler"):
        (found,) = torch.autograd.grad(y.sum() + z.square().sum(), given[0])
    y, z = scaled(*given)
    (expected,) = torch.autograd.grad(y.sum() + z.square().sum(), given[0])
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_pixels_are_rows(everywhere):
    r"""One kernel for any number of pixels, and another for other channels."""

    def standardized(x, eps):
        return (x - x.mean(dim=1, keepdim=True)) / (x.std(dim=1, keepdim=True) + eps)

    kernel = pixelwise(standardized)
    for shape in ((2, 3, 4, 5), (1, 3, 6, 7), (2, 6, 4, 5)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        x = x.to(memory_format=torch.channels_last)
        with torch.no_grad():
            found = kernel(x, 1e-3)
        expected = (x - x.mean(dim=1, keepdim=True)) / (x.std(dim=1, keepdim=True) + 1e-3)
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert counters["stats"]["unique_graphs"] == 2
