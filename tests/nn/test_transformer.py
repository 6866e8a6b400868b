r"""The transformer against its formulas, written out token by token."""

import math

import pytest
import torch
import torch.nn.functional as F

from appa.config import load_config
from appa.nn.layers import Rotation
from appa.nn.transformer import Transformer
from appa.tasks.building import build_denoiser

from .mixed import mixed

SHAPE = (4, 3, 5)


def transformer(seed=0, **kwargs):
    torch.manual_seed(seed)
    net = Transformer(3, SHAPE, 16, 2, 2, 6, 2, **kwargs).double()
    with torch.no_grad():  # blocks begin as identities: give them a say
        for block in net.blocks:
            block.modulation[-1].weight.mul_(1e2)
    return net


def inputs(seed=1):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(2, 4, 3, 3, 5, generator=generator, dtype=torch.float64)
    clock = torch.randn(2, 4, 4, generator=generator, dtype=torch.float64)
    return z, torch.tensor([-3.0, 7.0], dtype=torch.float64), clock


def encoded(x, features):
    k = torch.linspace(0, 1, features // 2).double()
    angle = x[..., None] * 100**-k
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


def plain(net, z, c, clock):
    r"""The same network without shortcuts: every token carries all it is given."""
    (b, t, _, h, w), p = z.shape, net.patch
    years, days = clock[..., :2].flatten(1), clock[..., 2:].flatten(1)
    hours = torch.cat((years, days), dim=-1)[:, None, :, None, None].expand(-1, t, -1, h, w)
    x = torch.cat((z, hours), dim=2)
    tokens, positions = [], []
    for i in range(t // p):
        for j in range(h):
            for k in range(w):
                patch = x[:, i * p : (i + 1) * p, :, j, k]  # (B, p, C)
                tokens.append(patch.transpose(1, 2).flatten(1))  # channel slowest
                positions.append([i, j, k])
    s = net.embed(torch.stack(tokens, dim=1))
    positions = torch.tensor(positions, dtype=z.dtype)
    x = s + net.place(encoded(positions, 16).flatten(1))
    mod = encoded(c, 6)
    for block in net.blocks:
        a, beta, gamma, d = block.modulation(mod)[:, None].chunk(4, dim=-1)
        y = (1 + a) * F.layer_norm(x, (16,), eps=1e-5) + beta
        theta = positions @ block.attention.rotation.theta
        heads = []
        for head, qkv in enumerate(block.attention.qkv(y).view(b, -1, 3, 2, 8).unbind(3)):
            q, k, v = qkv.unbind(2)
            turned = []
            for u in (q, k):
                u = u / torch.sqrt(u.square().mean(-1, keepdim=True) + 1e-5)
                u = torch.view_as_complex(u.reshape(b, -1, 4, 2))
                u = u * torch.exp(1j * theta[:, 4 * head : 4 * head + 4])
                turned.append(torch.view_as_real(u).flatten(-2))
            scores = turned[0] @ turned[1].transpose(1, 2) / math.sqrt(8)
            heads.append(scores.softmax(-1) @ v)
        y = y + block.attention.out(torch.cat(heads, dim=-1))
        y = block.mlp(y)
        x = (x + gamma * y) / torch.sqrt(1 + gamma**2)
        x = (x + d * s) / torch.sqrt(1 + d**2)
    out = net.project(x).view(b, t // p, h, w, net.channels, p)
    return torch.stack([out[:, i // p, ..., i % p].movedim(-1, 1) for i in range(t)], dim=1)


def test_shortcuts_change_nothing():
    net, args = transformer(), inputs()
    with torch.no_grad():
        expected, found = plain(net, *args), net(*args)
    assert found.shape == args[0].shape
    # the frequencies here are rounded to single precision
    assert torch.allclose(found, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


def test_attention_knows_distances_only():
    r"""Rotated queries and keys meet in products that a common shift of place leaves alone."""
    torch.manual_seed(0)
    rotation = Rotation(8, 2).double()
    q, k = torch.randn(2, 8, dtype=torch.float64)
    here, there, shift = torch.randn(3, 1, 3, dtype=torch.float64)

    def product(p, r):
        return rotation.rotate(q, *rotation.angles(p)) @ rotation.rotate(k, *rotation.angles(r)).T

    assert torch.allclose(product(here, there), product(here + shift, there + shift), atol=1e-12)
    assert not torch.allclose(product(here, there), product(here + shift, there), atol=1e-2)


def test_checkpointing_changes_no_gradient():
    gradients = []
    for checkpointing in (False, True):
        net = transformer(checkpointing=checkpointing)
        z, c, clock = inputs()
        net(z.requires_grad_(), c, clock).square().mean().backward()
        gradients.append([z.grad, *(p.grad for p in net.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_mixed_precision_leaves_places_alone():
    r"""Places of the published grid, with angles of up to 47 radians: in single precision they are
    right to 1e-5, where bfloat16 would round by 4e-3, and angles by 0.1."""
    torch.manual_seed(0)
    net = Transformer(3, (2, 23, 47), 16, 1, 2, 6, 2)
    rotation = net.blocks[0].attention.rotation
    with mixed():
        places, (cos, sin) = net.places(), rotation.angles(net.positions)
    positions = net.positions.double()
    phi = positions @ rotation.theta.double()
    assert (cos - phi.cos()).abs().max() < 1e-5
    assert (sin - phi.sin()).abs().max() < 1e-5
    expected = net.place.double()(encoded(positions, 16).flatten(1))
    assert (places - expected).abs().max() < 1e-5


def test_mixed_precision_is_close():
    r"""A product's rounding is 2⁻⁹ of its size; that of ten one after another, not much more."""
    net, (z, c, clock) = transformer(), inputs()
    with torch.no_grad():
        expected = net(z, c, clock)
        net.float()
        with mixed():
            found = net(z.float(), c.float(), clock.float())
    error = (found - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert 1e-4 < error < 0.01


def test_noise_levels_are_told_apart_in_half_precision():
    r"""Of 10 log σ = 69, bfloat16 knows the quarter; its encoding is that of single precision."""
    from appa.nn.layers import SineEncoding

    c = 10 * torch.log(torch.tensor([1e3, 1.01e3, 1e-3]))
    sine = SineEncoding(64).bfloat16()
    assert (sine(c) - encoded(c.double(), 64)).abs().max() < 1e-5


def test_a_patch_must_divide_the_window():
    with pytest.raises(ValueError, match="2 hours do not divide a window of 5"):
        Transformer(3, (5, 3, 5), 16, 2, 2, 6, 2)


def test_the_papers_sizes():
    config = load_config("era5-0.25deg")
    with torch.device("meta"):
        denoiser = build_denoiser(config)
    assert len(denoiser.backbone.positions) == 12972
    assert sum(p.numel() for p in denoiser.parameters()) == pytest.approx(223e6, rel=2e-3)
