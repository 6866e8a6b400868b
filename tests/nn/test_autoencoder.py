r"""The autoencoder against plain formulas and the symmetries of the globe."""

import numpy as np
import pytest
import torch

from appa.config import load_config
from appa.nn.autoencoder import Autoencoder
from appa.nn.layers import ChannelNorm, Conv, gather, gather_last, softclip, spread, spread_last
from appa.tasks.building import build_autoencoder

from .mixed import mixed


def autoencoder(shape, longitude="circular", levels=3, seed=0, **kwargs):
    torch.manual_seed(seed)
    ae = Autoencoder(
        5, shape, 4, (6, 8, 10)[:levels], (1, 0, 2)[:levels], longitude=longitude, **kwargs
    ).double()
    with torch.no_grad():  # blocks begin as identities: give them a say
        for name, p in ae.named_parameters():
            if "conv2.weight" in name:
                p.mul_(1e2)
    return ae


def states(shape, batch=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 5, *shape, generator=generator, dtype=torch.float64)


def test_norm_is_that_of_numpy():
    x = states((3, 4)).numpy()
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, ddof=1, keepdims=True) + 1e-5)
    assert np.allclose(ChannelNorm()(torch.from_numpy(x)).numpy(), expected, rtol=0, atol=1e-12)


def test_convolution_closes_the_globe():
    r"""A circular convolution is the plain one on a grid written out three times."""
    torch.manual_seed(0)
    conv = Conv(5, 3).double()
    x = states((4, 6))
    thrice = torch.nn.functional.conv2d(x.repeat(1, 1, 1, 3), conv.weight, conv.bias, padding=1)
    assert torch.allclose(conv(x), thrice[..., 6:12], rtol=0, atol=1e-12)


def test_latents_are_bounded():
    z = torch.tensor([-1e6, -1.0, 0.0, 1e-3, 5.0, 1e6], dtype=torch.float64)
    y = softclip(z, 5.0)
    assert (y.abs() <= 5).all()
    assert y[2] == 0
    assert torch.isclose(y[3], z[3], rtol=1e-7)
    assert torch.isclose(y[4], z[4] / 2**0.5)


@pytest.mark.parametrize("longitude", ["circular", "halo"])
@pytest.mark.parametrize("shape", [(16, 32), (37, 72), (9, 20), (5, 8)])
def test_any_grid(shape, longitude):
    ae = autoencoder(shape, longitude)
    x = states(shape)
    z = ae.encode(x)
    assert z.shape[1:] == ae.latent_shape
    assert ae.latent_shape[1] == -(-shape[0] // 4)
    assert ae.latent_shape[2] == -(-shape[1] // 4) + (2 if longitude == "halo" else 0)
    assert ae.decode(z).shape == x.shape


def test_circular_needs_whole_latent_cells():
    with pytest.raises(ValueError, match="30 to be a multiple of 4"):
        autoencoder((16, 30))


@pytest.mark.parametrize("cells", [1, 3])
def test_rotated_states_have_rotated_reconstructions(cells):
    r"""Exactly, but for rounding, with circular convolutions; latents rotate as well."""
    ae = autoencoder((13, 32))
    x = states((13, 32))
    z, y = ae.encode(x), ae(x)
    assert y.std() > 0.01  # it is no constant that is rotated
    turned = torch.roll(x, 4 * cells, dims=-1)
    assert torch.allclose(ae.encode(turned), torch.roll(z, cells, dims=-1), rtol=0, atol=1e-12)
    assert torch.allclose(ae(turned), torch.roll(y, 4 * cells, dims=-1), rtol=0, atol=1e-12)


def test_halo_has_a_seam_of_bounded_error():
    r"""Rotation commutes exactly further from the seam than a pixel can see, and nearby the error
    is a fraction of the field, smaller than without a halo."""
    ae = autoencoder((12, 256), "halo")
    x = states((12, 256))
    y = ae(x)
    error = torch.roll(ae(torch.roll(x, 4, dims=-1)), -4, dims=-1) - y
    # a reconstruction sees both networks' layers: pixels, times the scale of each level
    layers = ((1 + 2) * 1 + 1 * 2 + (1 + 4) * 4 + 4) + (4 + 4 * 4 + 4) + (1 * 2) + (2 + 1)
    inside = slice(layers + 4, 256 - layers - 4)
    assert error[..., inside].abs().max() < 1e-12

    def seam(error):
        r"""A latent's width on either side."""
        return torch.cat((error[..., :4], error[..., -4:]), -1).square().mean().sqrt() / y.std()

    assert 0.3 < seam(error) < 0.45  # random weights mix all that they see: trained ones do less

    bare = autoencoder((12, 256), "halo")
    bare.padding, bare.shape, bare.latent_shape = (0, 0, 0, 0), (12, 256), (4, 3, 64)
    open_ended = torch.roll(bare(torch.roll(x, 4, dims=-1)), -4, dims=-1) - bare(x)
    assert seam(error) < 0.8 * seam(open_ended)


@pytest.mark.parametrize("longitude", ["circular", "halo"])
def test_states_on_another_grid(longitude):
    r"""Convolutions would make latents of another size of them."""
    with pytest.raises(ValueError, match=r"the autoencoder's grid is \(8, 16\)"):
        autoencoder((8, 16), longitude).encode(states((16, 32)))


@pytest.mark.parametrize("channels", [1, 6])
def test_states_of_other_channels(channels):
    r"""One channel less normals would be as many as they have."""
    ae = autoencoder((8, 16))
    ae.normals = states((8, 16))[0]
    with pytest.raises(ValueError, match=r"with 5 channels; give \(B, 5, 8, 16\)"):
        ae.encode(states((8, 16))[:, :1].repeat(1, channels, 1, 1))


@pytest.mark.parametrize("longitude", ["circular", "halo"])
def test_latents_of_another_size(longitude):
    r"""A cell more or less on each side: of what is decoded, as much would be cut off as if it were
    margins."""
    ae = autoencoder((8, 16), longitude)
    c, h, w = ae.latent_shape
    for shape in ((c, h + 1, w + 1), (c, h, w + 2), (c, h - 1, w), (c + 1, h, w)):
        for decode in (ae.decode, ae.linearize):
            with pytest.raises(ValueError, match=rf"latents have shape .* \({c}, {h}, {w}\); give"):
                decode(torch.zeros(2, *shape, dtype=torch.float64))


@pytest.mark.parametrize("longitude", ["circular", "halo"])
def test_normals_are_beside_the_networks(longitude):
    r"""States less normals have the latents that states have without them, and decode to states;
    changes have no normals in them. Weights are the same files."""
    ae, x, normals = autoencoder((9, 16), longitude), states((9, 16)), 3 * states((9, 16), 1, 2)[0]
    z, y, names = ae.encode(x), ae(x), list(ae.state_dict())
    ae.normals = normals
    assert list(ae.state_dict()) == names
    close = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(ae.encode(x + normals), z, **close)
    torch.testing.assert_close(ae.decode(z), y + normals, **close)
    torch.testing.assert_close(ae(x + normals), y + normals, **close)
    for run in (lambda: ae(x, bare=True), lambda: ae.decode(ae.encode(x, bare=True), bare=True)):
        torch.testing.assert_close(run(), y, **close)
    state, product = ae.linearize(z)
    torch.testing.assert_close(state, y + normals, **close)
    dz = torch.randn(z.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, tangent = torch.func.jvp(ae.decode, (z,), (dz,))
    torch.testing.assert_close(product(dz), tangent, **close)


def test_normals_keep_their_digits_in_mixed_precision():
    r"""What is decoded in bfloat16 is added to them in single precision: states that depart little
    from large normals are right to the rounding of departures, not of states."""
    ae, x = autoencoder((8, 16)), 1e-3 * states((8, 16))
    ae.normals = 100 + states((8, 16), 1, 2)[0]
    with torch.no_grad():
        expected = ae(x + ae.normals) - ae.normals
        ae.float()
        with mixed():
            found = ae((x + ae.normals.double()).float())
    assert found.dtype == torch.float32
    # 2⁻⁸ of departures, as without normals, and 2⁻²⁴ of states each way
    error = (found.double() - ae.normals.double() - expected).abs().max()
    assert error < 0.02 * expected.abs().max() + 2 * 100 * 2.0**-23


def test_mixed_precision_is_close():
    r"""Latents and reconstructions to a percent or two: bfloat16 rounds to 2⁻⁹ at each of twenty
    convolutions, and latents are perturbed by as much on purpose."""
    ae, x = autoencoder((16, 32)), states((16, 32))
    with torch.no_grad():
        expected = ae.encode(x), ae(x)
        ae.float()
        with mixed():
            found = ae.encode(x.float()), ae(x.float())
    for a, b in zip(found, expected, strict=True):
        assert 1e-4 < (a - b).square().mean().sqrt() / b.std() < 0.02


def test_layouts_are_the_same_network():
    r"""In memory, channels last: the same but for the order of sums."""
    ae, x = autoencoder((8, 16)), states((8, 16))
    expected = ae(x)
    ae.to(memory_format=torch.channels_last)
    found = ae(x.to(memory_format=torch.channels_last))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("last", [False, True])
def test_pixels_and_channels_are_exchanged_in_their_layout(layout, last):
    x = torch.randn(2, 12, 3, 5, dtype=torch.float64).to(memory_format=layout)
    there, back = (spread_last, gather_last) if last else (spread, gather)
    y = there(x, 2)
    assert torch.equal(y, torch.nn.functional.pixel_shuffle(x, 2))
    assert torch.equal(back(y, 2), x)
    if last:
        layout = torch.channels_last
    assert y.is_contiguous(memory_format=layout)
    assert back(y, 2).is_contiguous(memory_format=layout)


@pytest.mark.parametrize("inputs", [False, True])
def test_checkpointing_changes_no_gradient(inputs):
    r"""Of weights, or of states too; and of what levels compute, nothing is kept in either case."""
    x, noise = states((8, 16)), 0.1 * torch.randn(2, 4, 2, 4, dtype=torch.float64)
    gradients, kept = [], []
    for checkpointing in (False, True):
        ae = autoencoder((8, 16), checkpointing=checkpointing)
        sizes = []

        def pack(t, sizes=sizes):
            sizes.append(0 if isinstance(t, torch.nn.Parameter) else t.numel())
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss = ae(x.clone().requires_grad_(inputs), noise).square().mean()
        loss.backward()
        gradients.append([p.grad for p in ae.parameters()])
        kept.append(sum(sizes))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    # latents, the convolutions to and from them, and the output remain
    assert kept[1] < 0.3 * kept[0]


def test_the_papers_sizes():
    config = load_config("era5-0.25deg")
    with torch.device("meta"):
        ae = build_autoencoder(config)
    assert ae.latent_shape == (128, 23, 47)
    assert config.compression == pytest.approx(532, abs=1)
    assert sum(p.numel() for p in ae.parameters()) == pytest.approx(314e6, rel=2e-3)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("longitude", ["circular", "halo"])
def test_linearized_products_are_those_of_automatic_differentiation(
    monkeypatch, longitude, several
):
    r"""Forward and backward, with states decoded all at once or one and two at a time."""
    if several:
        monkeypatch.setattr("appa.nn.autoencoder.AT_ONCE", 2400)
    ae = autoencoder((11, 16), longitude)
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(3, *ae.latent_shape, generator=generator, dtype=torch.float64)
    dz = torch.randn(3, *ae.latent_shape, generator=generator, dtype=torch.float64)
    dx = torch.randn(3, 5, 11, 16, generator=generator, dtype=torch.float64)
    assert (ae.at_once < 3) == several
    few = ae.decode(z)
    x, product = ae.linearize(z.requires_grad_())
    monkeypatch.undo()
    expected, tangent = torch.func.jvp(ae.decode, (z.detach(),), (dz,))
    assert torch.allclose(x, expected, rtol=0, atol=1e-12)
    assert torch.allclose(few, expected, rtol=0, atol=1e-12)
    assert torch.allclose(product(dz), tangent, rtol=0, atol=1e-12)
    assert tangent.abs().max() > 0.1
    (cotangent,) = torch.autograd.grad(ae.decode(z), z, dx)
    for _ in range(2):  # as often as asked
        (found,) = torch.autograd.grad(x, z, dx, retain_graph=True)
        assert torch.allclose(found, cotangent, rtol=0, atol=1e-12)
    assert cotangent.abs().max() > 0.1


def test_a_linearization_keeps_less_than_a_graph():
    r"""Two numbers for each that a block gives, instead of six."""
    ae, kept = autoencoder((16, 32)).requires_grad_(False), []
    z = torch.randn(2, *ae.latent_shape, dtype=torch.float64, requires_grad=True)
    for run in (ae.decode, lambda z: ae.linearize(z)[0]):
        storages = {}

        def pack(t, storages=storages):
            if not isinstance(t, torch.nn.Parameter):
                storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            x = run(z)
        kept.append(sum(storages.values()))
        assert x.requires_grad
    assert 0 < kept[1] < 0.4 * kept[0]


def test_linearized_in_mixed_precision():
    r"""Products of both kinds to the rounding of bfloat16, also where nothing says so anymore."""
    ae = autoencoder((16, 32)).requires_grad_(False)
    generator = torch.Generator().manual_seed(2)
    z, dz = torch.randn(2, 2, *ae.latent_shape, generator=generator, dtype=torch.float64)
    dx = states((16, 32))
    x, product = ae.linearize(z.requires_grad_())
    expected = product(dz), torch.autograd.grad(x, z, dx)[0]
    ae.float()
    z = z.detach().float().requires_grad_()
    with mixed():
        x, product = ae.linearize(z)
    assert x.dtype == torch.float32  # of what was decoded in half of it
    with torch.backends.mkldnn.flags(enabled=False):
        back = torch.autograd.grad(x, z, dx.bfloat16())[0]
        assert back.dtype == torch.float32
        found = product(dz.float()), back
    for a, b in zip(found, expected, strict=True):
        assert 1e-4 < (a - b).square().mean().sqrt() / b.square().mean().sqrt() < 0.03
