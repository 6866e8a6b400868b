r"""Samplers on a Gaussian process, and going on in the middle."""

import math

import pytest
import torch

from appa.diffusion.guidance import GUIDANCES
from appa.diffusion.likelihood import GaussianLikelihood
from appa.diffusion.sampling import SAMPLERS, Noise, Sampler, draw, integrate
from appa.diffusion.sequential import (
    Window,
    draw_sequential,
    joined,
    schedule,
    sweep,
    windows,
)

from .gaussian import covariance, denoiser, hours


class Killed(Exception):
    pass


class Memory(dict):
    r"""Keeps what is saved, and dies after some saves."""

    def __init__(self, *args, patience: int = 10**9):
        super().__init__(*args)
        self.patience = patience

    def load(self, name):
        kept = self.get(name)
        return dict(kept) if kept is not None else None

    def save(self, name, tensors, step, force=False):
        self[name] = {k: t.clone() for k, t in tensors.items()} | {"step": torch.tensor(step)}
        self.patience -= 1
        if not self.patience:
            raise Killed

    def done(self, name, tensors=None):
        self.pop(name, None)


def seen(window: int = 6) -> GaussianLikelihood:
    return GaussianLikelihood(lambda z: z[:, ::2].flatten(1), torch.ones((window + 1) // 2), 0.1)


@pytest.mark.parametrize("name", SAMPLERS)
def test_levels(name):
    sampler = Sampler(name, steps=8)
    levels = sampler.levels(denoiser().schedule)
    assert levels[0].item() == pytest.approx(1e3)
    assert levels[-1].item() == pytest.approx(1e-3)
    assert (levels.diff() < 0).all()
    assert len(levels) == (8 if name == "multistep" else 9)  # its last step is to no noise


def test_multistep_is_of_its_order():
    r"""Of a standard normal the flow is known: z = z_T / sqrt(1 + σ_max²), down to none."""
    like = torch.zeros((), dtype=torch.float64)
    d = denoiser()

    def error(order, steps):
        noise = Noise(0, [0])
        found = integrate(
            lambda z, s: z / (1 + s**2),
            (4,),
            Sampler("multistep", steps, order),
            d.schedule,
            noise,
            like,
        )
        exact = noise((4,)).double()
        return (found - exact).abs().max().item() / exact.abs().max().item()

    for order in (1, 2, 3):
        ratio = error(order, 800) / error(order, 1600)
        assert ratio > 0.9 * 2**order  # on this symmetric flow the third is of the fourth
    assert error(3, 22) < 0.003  # half of what is off in variances


@pytest.mark.parametrize("name", SAMPLERS)
def test_killed_it_goes_on(name):
    sampler, guidance = Sampler(name, steps=7), GUIDANCES["mmps"](iterations=3)
    options = {"stride": 2, "seed": 3, "sampler": sampler, "guidance": guidance}

    def run(keeper):
        return draw(denoiser(6), hours(8), 2, likelihoods=[seen(), None], keeper=keeper, **options)

    whole = run(None)
    memory = Memory(patience=4)
    with pytest.raises(Killed):
        run(memory)
    assert int(memory["draw"]["step"]) == 4
    assert torch.equal(run(Memory(memory)), whole)


def test_sequential_killed_goes_on():
    def run(keeper):
        return draw_sequential(
            denoiser(6),
            hours(15),
            range(2),
            guidance=GUIDANCES["mmps"](iterations=6),
            sampler=Sampler(steps=5),
            observe=lambda start, free: seen() if start == 0 else None,
            past=2,
            lag=1,
            sweeps=1,
            keeper=keeper,
        )

    whole, memory = run(None), Memory(patience=9)
    with pytest.raises(Killed):
        run(memory)
    assert torch.equal(run(Memory(memory)), whole)


@pytest.mark.parametrize("understated", [0.1, 0.4])
def test_noise_understated_gives_draws_the_variance_it_should(understated):
    r"""Along an eigenvector of the covariance the flow is linear: with eigenvalue λ and a network
    that is told s(σ), d log z / d log σ = s² / (λ + s²), whose integral is taken here by rule."""
    d = denoiser(6).double()
    values, vectors = torch.linalg.eigh(covariance(6))
    steps = 400

    def drawn(share):
        d.understated = share
        z = draw(d, hours(6), 2, stride=2, steps=steps, seed=1, sampler=Sampler(steps=steps))
        return z.flatten(1).double() @ vectors

    log = torch.linspace(math.log(1e-3), math.log(1e3), 20_001, dtype=torch.float64)
    s = torch.exp(log) * (1 - understated * torch.exp(-((log - math.log(10)) ** 2) / 2))
    rates = [x**2 / (values[:, None] + x**2) for x in (s, torch.exp(log))]
    expected = torch.exp(torch.trapezoid(rates[1] - rates[0], log))
    assert expected.max() > 1.02
    ratio = drawn(understated) / drawn(0.0)
    assert torch.allclose(ratio, expected.expand_as(ratio), rtol=2e-3)


def test_no_loss_understates_noise():
    d = denoiser(6)
    z, noise = torch.randn(2, 4, 6, 1, 1, 1, generator=torch.Generator().manual_seed(0))
    sigma = torch.tensor([0.1, 2.0, 10.0, 50.0])
    losses = d.loss(z, sigma, hours(6), noise)
    d.understated = 0.3
    assert torch.equal(d.loss(z, sigma, hours(6), noise), losses)
    assert not torch.equal(d(z, sigma, hours(6)), d(z, sigma, hours(6), exactly=True))


@pytest.mark.parametrize("name", SAMPLERS)
def test_batches_change_nothing(name):
    options = {
        "stride": 2,
        "sampler": Sampler(name, steps=5),
        "guidance": GUIDANCES["mmps"](iterations=4, tolerance=1e-3),
        "likelihoods": [seen(), None, seen()],
    }
    together = draw(denoiser(6), hours(10), 3, **options)
    for batch in (1, 2):
        apart = draw(denoiser(6), hours(10), 3, batch=batch, **options)
        assert torch.allclose(apart, together, rtol=0, atol=1e-5)
    alone = draw(denoiser(6), hours(10), [1], **options)
    assert torch.allclose(alone[0], together[1], rtol=0, atol=1e-5)


# ---------------------------------------------------------------- the windows of `sequential`


def test_a_window_continues_what_it_was_given():
    before, drawn = torch.randn(2, 3, 12, 1, 1, 1, generator=torch.Generator().manual_seed(0))
    window = Window(0, (0, 1, 2, 10, 11), slice(3, 10))
    out = joined(drawn, before, window, 3)[..., 0, 0, 0]
    before, drawn = before[..., 0, 0, 0], drawn[..., 0, 0, 0]
    left, right = (drawn - before)[:, 2:3], (drawn - before)[:, 10:11]
    share = torch.tensor([0.75, 0.5, 0.25])
    assert torch.allclose(out[:, 3:6], drawn[:, 3:6] - share * left)
    assert torch.equal(out[:, 6], drawn[:, 6])
    assert torch.allclose(out[:, 7:10], drawn[:, 7:10] - share.flip(0) * right)
    # across the joint the window's own change, but for a quarter of what it missed
    change = out[:, 3] - before[:, 2]
    assert torch.allclose(change, drawn[:, 3] - drawn[:, 2] + left[:, 0] / 4, atol=1e-6)
    # nothing given, nothing to continue
    free = Window(0, (), slice(0, 12))
    assert torch.equal(joined(drawn[..., None, None, None], drawn, free, 3)[..., 0, 0, 0], drawn)


@pytest.mark.parametrize("length", [24, 25, 36, 47, 60, 100])
@pytest.mark.parametrize(("past", "lag", "new", "known"), [(4, 8, None, 0), (12, 0, 6, 12)])
def test_first_pass(length, past, lag, new, known):
    r"""Every hour is drawn once, in order, after those it is given."""
    drawn = known
    for w in windows(length, 24, known, past, lag, new):
        assert 0 <= w.start <= length - 24
        assert [w.start + i for i in w.given] == list(range(w.start, drawn))
        assert len(w.given) >= past or not drawn
        assert w.start + w.kept.start == drawn
        drawn = w.start + w.kept.stop
        assert drawn == length or 24 - w.kept.stop >= lag
        assert new is None or not w.given or w.kept.stop - w.kept.start <= new
    assert drawn == length


@pytest.mark.parametrize("length", [25, 36, 60, 100])
@pytest.mark.parametrize("number", [0, 1])
def test_sweeps(length, number):
    r"""Every hour is drawn once more, with all others of its window given: two on a side, or all
    there are."""
    times = torch.zeros(length)
    for w in sweep(length, 24, 0, number):
        kept = range(24)[w.kept]
        times[w.start : w.start + 24][w.kept] += 1
        assert sorted([*w.given, *kept]) == list(range(24))
        assert kept[0] >= 2 or w.start == 0
        assert kept[-1] < 22 or w.start == length - 24
    assert (times == 1).all()


def test_one_window_needs_no_sweep():
    assert len(schedule(24, 24, 0, 4, 8, None, sweeps=3)) == 1
    assert len(schedule(10, 24, 0, 4, 8, None, sweeps=3)) == 1


@pytest.mark.parametrize(
    ("past", "lag", "new"), [(0, 0, None), (24, 0, None), (4, 20, None), (4, 8, 13)]
)
def test_windows_that_cannot_be(past, lag, new):
    with pytest.raises(ValueError, match="window of 24 hours"):
        windows(60, 24, 0, past, lag, new)
