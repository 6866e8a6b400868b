r"""A window with its observations and a model with fresh weights, to be measured.

The observing network is the paper's: stations at one in a hundred grid points, which see the
surface, and one polar orbiter, which sees all levels within its swath. Operators are built by the
package's stencils, without reading and checking a hundred million observations. Values observed are
those of random latents that are decoded, with noise.

There are two ways to evaluate a guided window (MMPS with a fixed number of iterations), which give
the same answer:

- plain: the arithmetic as formulas have it. States are decoded one at a time and computed again
  where a gradient passes (checkpointed), nothing is compiled, products with the Jacobian are
  `torch.func.jvp`, which decodes once more for each, and the solver is azula's.
- appa: :class:`appa.diffusion.guidance.mmps.MMPS`.

In both, networks run in the same precision, which is autocast's where it is not single.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from azula.linalg.solve import gmres
from common import planet_states, planet_statistics
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import appa
from appa.config import Config, load_config
from appa.data.clock import clock_features
from appa.data.variables import VARIABLES
from appa.diffusion.guidance.mmps import MMPS
from appa.diffusion.trajectory import TrajectoryDenoiser
from appa.observations.errors import WindowCovariance
from appa.observations.operators import HourOperator
from appa.observations.parts import Linear
from appa.observations.stencils import Gather, StateSpace, Stencils
from appa.tasks.building import build_autoencoder, build_denoiser
from appa.tasks.folders import gather
from appa.tasks.likelihood import StatesLikelihood
from appa.tasks.model import Model
from appa.tasks.precision import Precision

__all__ = ["SIGMA", "World", "operations"]

SIGMA = 1.0  # the level of noise, on which costs do not depend
START = np.datetime64("2021-03-21T00", "ns")


class World:
    r"""A model and what is observed of a window.

    Arguments:
        preset: A configuration.
        device: Where.
        precision: That of the networks, `float32`, `bfloat16` or `float16`.
        iterations: The number of iterations of the solver.
        stations: The number of stations, by default one in a hundred grid points.
    """

    def __init__(
        self,
        preset: str,
        device: torch.device,
        precision: str = "float32",
        iterations: int = 2,
        stations: int | None = None,
    ):
        self.config = config = load_config(preset)
        #: The precision that networks are evaluated in.
        self.device, self.precision = device, Precision(precision, device)
        self.iterations, self.window = iterations, config.window
        torch.manual_seed(0)
        latents = config.latent_shape
        with torch.device(device):
            networks = build_autoencoder(config), build_denoiser(config)
        mean, std = torch.zeros(latents[0], device=device), torch.ones(latents[0], device=device)
        static = gather(planet_statistics(config), planet_states(config, 1))
        self.model = Model(config, *networks, mean, std, static, "benchmark")
        for parameter in self.model.denoiser.parameters():  # the last layer is zero when fresh
            parameter.data.add_(0.02 * torch.randn_like(parameter))
        self.times = START + np.arange(self.window) * np.timedelta64(1, "h")
        self.clock = torch.from_numpy(clock_features(self.times)).float().to(device)
        self.network = appa.named_network(config.grid, stations=stations)
        self.space = StateSpace.of(self.model)
        self.truth = torch.randn(self.window, *latents, device=device)
        self._all: list[HourOperator] | None = None
        self._covariances: dict[int, WindowCovariance] = {}
        self.guidance = MMPS(iterations=iterations)

    def noisy(self, members: int, hours: int | None = None) -> Tensor:
        shape = (members, hours or self.window, *self.config.latent_shape)
        generator = torch.Generator().manual_seed(1)
        return torch.randn(shape, generator=generator).to(self.device)

    # ---------------------------------------------------------------- observations

    @property
    def network_operators(self) -> list[HourOperator]:
        r"""All that the network sees, hour by hour."""
        if self._all is None:
            seen = self.network.satellites[0].sees(self.config.grid, self.times)
            self._all = [self._operator(k, np.flatnonzero(seen[k])) for k in range(self.window)]
        return self._all

    def operators(self, count: int | None = None, hours: int | None = None) -> list[Any]:
        r"""Observations: all that the network sees or as many of a window, thinned at random or
        completed by points beside the swath; of all hours, or of some spread evenly."""
        chosen = np.unique(np.linspace(0, self.window - 1, hours or self.window).round())
        found: list[HourOperator | None] = [None] * self.window
        for k in map(int, chosen):
            op = self.network_operators[k]
            found[k] = op if count is None else self._some(k, op, count // len(chosen))
        return found

    def likelihood(self, operators: list[Any], at_once: int | None = None) -> StatesLikelihood:
        n = sum(len(op) for op in operators if op is not None)
        if n not in self._covariances:  # the identity, whatever is observed
            self._covariances[n] = WindowCovariance(operators, None, self.space, "none")
        covariance = self._covariances[n]
        return StatesLikelihood(self.model, operators, covariance, at_once, self.precision)

    def _some(self, hour: int, op: HourOperator, n: int) -> HourOperator:
        if n > len(op):
            levels = sum(channel.level is not None for channel in self.config.channels)  # type: ignore[union-attr]
            seen = np.flatnonzero(
                self.network.satellites[0].sees(self.config.grid, self.times)[hour]
            )
            points = np.setdiff1d(np.arange(self.config.grid.area.size), seen)
            more = min(-(-(n - len(op)) // levels), len(points))
            op = self._operator(hour, np.sort([*seen, *points[:: len(points) // more][:more]]))
        generator = torch.Generator(self.device).manual_seed(hour)
        order = torch.randperm(len(op), generator=generator, device=self.device)
        kept = order[:n].sort().values
        parts, start = [], 0
        for part in op.parts:
            assert isinstance(part, Linear)
            own = kept[(kept >= start) & (kept < start + len(part))] - start
            parts.append(Linear(Gather(part.gather.index[own], part.gather.weight[own])))
            start += len(part)
        none = torch.zeros(len(kept), device=self.device)
        return replace(
            op,
            y=op.y[kept],
            error=none,
            reference=none,
            rows=pd.DataFrame(index=pd.RangeIndex(len(kept))),
            parts=tuple(part for part in parts if len(part)),
        )

    def _operator(self, hour: int, points: np.ndarray) -> HourOperator:
        r"""What the stations see, and at points of the grid the orbiter."""
        listed, orbiter = self.network.stations, self.network.satellites[0]
        at = np.asarray(listed["latitude"], float), np.asarray(listed["longitude"], float) % 360
        stencils = Stencils(self.space, *at)
        index, weight, seen = [], [], []
        for c, channel in enumerate(self.config.channels):
            if VARIABLES[channel.variable].surface:  # type: ignore[union-attr]
                i, w, _ = stencils.affine(channel.variable)  # type: ignore[union-attr]
                index.append(torch.from_numpy(i))
                weight.append(torch.from_numpy(w / (self.network.noise * self.space.std[c])))
            else:  # at a grid point, one number of the state
                seen.append(torch.from_numpy(points + c * self.config.grid.area.size))
        swath = torch.cat(seen)[:, None]
        parts = [
            Linear(Gather(i, w.float()).to(self.device))
            for i, w in (
                (torch.cat(index), torch.cat(weight)),
                (swath, torch.full(swath.shape, 1 / orbiter.noise)),
            )
        ]
        n = sum(map(len, parts))
        none = torch.zeros(n, device=self.device)
        op = HourOperator(
            hour=self.times[hour],
            y=none,
            error=none,
            reference=none,
            rows=pd.DataFrame(index=pd.RangeIndex(n)),
            parts=tuple(parts),
            shape=self.config.state_shape,
        )
        with torch.no_grad(), self.precision():
            y = op(self.model.decode(self.truth[hour][None]))[0]
        return replace(op, y=y + torch.randn_like(y))

    # ---------------------------------------------------------------- ways

    def denoise(self, z_t: Tensor) -> Tensor:
        return self.model.denoiser(z_t, SIGMA, self.clock)

    def appa(self, z_t: Tensor, likelihood: StatesLikelihood) -> Tensor:
        r"""A guided evaluation, as the package does it."""
        denoiser = self.precision.denoiser(self.model.denoiser)
        return self.guidance(lambda z: denoiser(z, SIGMA, self.clock), z_t, SIGMA, likelihood)

    def trajectory(self, hours: int, operators: list[Any]) -> tuple[TrajectoryDenoiser, Tensor]:
        r"""A denoiser of composed windows, each guided, and a noisy trajectory. Observations of a
        day are those of the next."""
        stride = self.config.sampling.stride
        day = self.likelihood(operators)
        windows = []
        for start in range(0, hours - self.window + 1, stride):
            turn = start % self.window
            here = [*operators[turn:], *operators[:turn]]
            windows.append(
                StatesLikelihood(self.model, here, day.covariance, precision=self.precision)
            )
        times = START + np.arange(hours) * np.timedelta64(1, "h")
        denoiser = TrajectoryDenoiser(
            self.precision.denoiser(self.model.denoiser),
            times,
            stride,
            guidance=self.guidance,
            likelihoods=windows,
        )
        return denoiser, self.noisy(1, hours)

    @contextmanager
    def plainly(self):
        r"""The layout that weights have when they are made, and checkpoints in the transformer."""
        ae, backbone = self.model.autoencoder, self.model.denoiser.backbone
        ae.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        backbone.checkpointing = True
        try:
            yield
        finally:
            ae.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            backbone.checkpointing = False

    def plain(self, z_t: Tensor, operators: list[Any]) -> Tensor:
        r"""A guided evaluation, the plain way."""
        with self.plainly():
            return self._plain(z_t, operators)

    def _plain(self, z_t: Tensor, operators: list[Any]) -> Tensor:
        seen = [(t, op) for t, op in enumerate(operators) if op is not None]

        def hour(z: Tensor, k: int) -> Tensor:
            return -seen[k][1].departure(self.model.decode(z))

        def observe(z: Tensor, kept: bool = False) -> Tensor:
            parts = []
            for k, (t, _) in enumerate(seen):
                at = z[:, t]
                again = checkpoint(hour, at, k, use_reentrant=False) if kept else hour(at, k)
                parts.append(again)
            return torch.cat([p for p in parts if isinstance(p, Tensor)], dim=1)

        with torch.enable_grad(), self.precision():
            z_t = z_t.detach().requires_grad_()
            mean = self.denoise(z_t)
            y = observe(mean, kept=True)

        def covariance(v: Tensor) -> Tensor:
            w = torch.autograd.grad(y, mean, v, retain_graph=True)[0]
            w = SIGMA**2 * torch.autograd.grad(mean, z_t, w, retain_graph=True)[0]
            with self.precision():
                return v + torch.func.jvp(observe, (mean.detach(),), (w,))[1]

        v = gmres(covariance, -y.detach(), iterations=self.iterations)
        return mean.detach() + SIGMA**2 * torch.autograd.grad(y, z_t, v)[0]


# ---------------------------------------------------------------- operations


def operations(config: Config) -> dict[str, float]:
    r"""Operations of one pass of each kind, a state or a window each, counted as they are called
    (on tensors without numbers). Those of the transformer's backward pass are with respect to
    windows; a training step's are forward and backward, nothing computed again."""
    found: dict[str, float] = {}

    def count(name: str, run: Callable[[], Any]) -> Any:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            result = run()
        found[name] = float(counter.get_total_flops())
        return result

    with FakeTensorMode():
        ae, denoiser = build_autoencoder(config), build_denoiser(config)
        x, z = torch.empty(1, *config.state_shape), torch.empty(1, *ae.latent_shape)
        window = torch.empty(1, config.window, *ae.latent_shape)
        clock = torch.empty(1, config.window, 4)

        def trained(network: nn.Module, loss: Callable[[], Tensor]) -> None:
            torch.autograd.grad(loss(), list(network.parameters()))

        count("autoencoder step", lambda: trained(ae, lambda: ae(x).sum()))
        count(
            "denoiser step",
            lambda: trained(denoiser, lambda: denoiser(window, SIGMA, clock).sum()),
        )
        ae.requires_grad_(False)
        denoiser.requires_grad_(False)
        count("encode", lambda: ae.encode(x))
        count("decode", lambda: ae.decode(z))
        state, product = ae.linearize(z.requires_grad_())
        count("product", lambda: product(z.detach()))
        count("transposed", lambda: torch.autograd.grad(state, z, torch.empty_like(state)))
        window.requires_grad_()
        mean = count("denoise", lambda: denoiser(window, SIGMA, clock))
        count("denoise back", lambda: torch.autograd.grad(mean, window, torch.empty_like(mean)))
    return found
