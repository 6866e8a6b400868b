r"""What evaluations hold, by formula, against what graphs keep."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from appa.config import Config, load_config
from appa.tasks.building import build_autoencoder, build_denoiser
from appa.tasks.memory import SHARE, Memory, ResidualMemory, denoiser_graph, linearization

from ..nn.mixed import mixed
from . import small


def sized(widths: list[int], blocks: list[int], width: int, longitude: str) -> Config:
    autoencoder = {
        "normals": False,
        "latent_channels": 3,
        "hidden_channels": widths,
        "blocks": 1,
        "decoder_channels": widths,
        "decoder_blocks": blocks,
        "longitude": longitude,
    }
    denoiser = {"width": width, "blocks": 2, "heads": 2, "modulation": 8}
    return small.config(autoencoder=autoencoder, denoiser=denoiser)


def kept(run: Callable[[], Any]) -> int:
    r"""The bytes that a call's graph keeps: storages, each once, but for weights."""
    found: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        base = x if x._base is None else x._base
        if not isinstance(base, torch.nn.Parameter):
            found[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = run()
    del out
    return sum(found.values())


CONFIGS = [
    sized([16, 24, 32], [2, 1, 0], 32, "circular"),
    sized([8, 16], [1, 2], 64, "halo"),
]


@pytest.mark.parametrize("config", CONFIGS, ids=["circular", "halo"])
@pytest.mark.parametrize("size", [4, 2])
def test_graphs_keep_what_is_said(config, size):
    ae, denoiser = build_autoencoder(config), build_denoiser(config)
    ae.requires_grad_(False)
    denoiser.requires_grad_(False)
    z = torch.randn(3, config.window, *config.latent_shape, requires_grad=True)
    clock = torch.zeros(config.window, 4)
    with mixed() if size == 2 else nullcontext():
        decoder = kept(lambda: ae.linearize(z[:, 0]))
        one, three = (kept(lambda n=n: denoiser(z[:n], 1.0, clock)) for n in (1, 3))
    assert decoder == 3 * linearization(config, size)
    scalars = 3 * 4  # of the preconditioning
    assert three - one == 2 * (denoiser_graph(config, size) + scalars)
    # what windows share: angles, and weights in another precision
    section = config.denoiser
    shared = 4 * section.blocks * config.tokens * section.width
    weights = sum(p.numel() for p in denoiser.parameters()) * (size if size == 2 else 0)
    rest = one - denoiser_graph(config, size) - shared
    embedding = 4 * section.width * section.patch * config.latent_shape[0]
    assert 0 <= rest <= weights + embedding + 2**10


@pytest.mark.parametrize(
    ("preset", "members", "hours", "measured"),
    [
        ("planet", 1, 24, 0.438),
        ("planet", 2, 24, 0.700),
        ("planet", 4, 24, 1.424),
        ("planet", 1, 6, 0.223),
        ("planet", 1, 1, 0.191),
        ("planet-large", 1, 24, 0.992),
        ("planet-large", 1, 1, 0.368),
    ],
)
def test_no_less_is_planned_than_was_measured(preset, members, hours, measured):
    r"""GiB of a guided evaluation on a CPU, the larger of those with and without probes (see
    `benchmarks/README.md`): with the share that may be taken, there is room for a third more."""
    config = load_config(preset)
    with torch.device("meta"):
        states = build_autoencoder(config).at_once
    planned = Memory(config).total(members, hours, 436_859, states) / 2**30
    assert 1 <= planned / measured < 1.6


def test_no_less_is_planned_for_residuals_than_was_measured():
    r"""GiB on a CPU at 0.25°, of harmonics, and of a member's observed northward wind, which takes
    most, over six hours."""
    memory = ResidualMemory(load_config("era5-0.25deg"), 6)
    assert 1 <= memory.once / 2**30 / 0.738 < 1.6
    assert 1 <= memory.channel / 2**30 / 0.484 < 1.6


def test_affordable():
    r"""As many as fit, and one more does not."""
    memory = Memory(CONFIGS[0], iterations=3)
    for free in (2**27, 2**29, 2**31):
        members, hours = memory.affordable(free, 8, 1000, 16)
        most = SHARE * free
        assert hours is None
        assert memory.total(members, 8, 1000, 16) <= most < memory.total(members + 1, 8, 1000, 16)
    free = int(memory.total(1, 4, 1000, 16) / SHARE) + 1
    assert memory.affordable(free, 8, 1000, 16) == (1, 4)
    assert memory.affordable(0, 8, 1000, 16) == (1, 1)  # it is tried nevertheless
    assert memory.affordable(2**40, 8, 10**9, 16)[0] < memory.affordable(2**40, 8, 0, 16)[0]
