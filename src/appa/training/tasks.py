r"""What the loop trains: a network, its data, its loss, and what is said about it on the way.

The autoencoder's loss is the weighted error of :math:`D(E(x) + \sigma_z \epsilon)`, see
:mod:`appa.training.losses`; the denoiser's is that of
:meth:`appa.diffusion.denoiser.Denoiser.loss` on standardized latents

.. math:: \frac{z + \sigma_z \epsilon - \mu}{\sqrt{s^2 + \sigma_z^2}} , \qquad
    t \sim \mathcal{U}(0, 1) , \quad \sigma_t \text{ of the rectified schedule} .
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from ..config import Config
from ..data.sources import open_source
from ..data.states import Standardizer
from ..data.windows import WindowLoader
from ..diffusion.denoiser import Denoiser
from ..errors import DataError
from ..nn.autoencoder import Autoencoder
from ..sections import Training
from ..tasks.building import build_autoencoder, build_denoiser
from ..tasks.folders import write_config, write_statistics
from .losses import WeightedError
from .noise import normal, uniform
from .pictures import draw_reconstruction
from .resident import Feed, make_feed
from .validation import Batch, Validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .distribution import Ranks

__all__ = ["AutoencoderTask", "DenoiserTask", "Task"]

VALIDATION_SEED = 20_250_101  # of the windows and the noise that validation always takes
SIGMAS = (1e-2, 1e-1, 1.0, 1e1, 1e2)  # edges of the bins that the denoiser's loss is told in

# streams of random numbers
NOISE, LATENT_NOISE, TIME = 0, 1, 2


class Task:
    r"""A network to train.

    Arguments:
        config: The configuration.
        data: The store to train on.
        network: The network.
        objective: A module that holds the network, and gives the loss :math:`(B)` of what
            :meth:`inputs` made of a batch.
    """

    name: str
    unit: str  # what an element of a batch is called
    file: str  # of the weights in the run folder
    dtype: torch.dtype  # of hours that are kept on the device

    def __init__(self, config: Config, data: Any, network: nn.Module, objective: nn.Module):
        self.config, self.data = config, data
        self.network, self.objective = network, objective
        self.device = torch.device("cpu")
        self.generator: torch.Generator | None = None

    def to(self, device: torch.device) -> None:
        r"""Moves the network to a device."""
        self.device = device
        self.generator = torch.Generator(device)
        self.objective.to(device)

    @property
    def settings(self) -> Training:
        r"""The section of the configuration that says how to train it."""
        return getattr(self.config.training, self.name)

    @property
    def window(self) -> int:
        r"""The hours of an element."""
        return 1

    @property
    def units(self) -> list[nn.Module]:
        r"""The modules whose parameters are gathered together where they are cut."""
        raise AttributeError

    @property
    def options(self) -> dict[str, Any]:
        r"""How hours are read, see :class:`appa.data.windows.WindowLoader`."""
        return {}

    def feed(
        self,
        ranks: Ranks,
        micro: int,
        accumulation: int,
        *,
        seed: int = 0,
        workers: int = 4,
        resident: bool | None = None,
    ) -> Feed:
        r"""The batches of the training split."""
        return make_feed(
            self.data,
            self.window,
            micro,
            ranks.device,
            accumulation=accumulation,
            dtype=self.dtype,
            resident=resident,
            split=self.split("train"),
            seed=seed,
            rank=ranks.rank,
            world_size=ranks.world,
            workers=workers,
            **self.options,
        )

    def split(self, name: str) -> tuple[str, str]:
        r"""The first and last hour of a split."""
        period = self.config.data.splits.period(name)
        return period.start, period.stop

    def validation(self, ranks: Ranks, micro: int, count: int) -> Validation | None:
        r"""The batches that every validation takes; :py:`None` where the store has no hours of the
        validation split.

        Arguments:
            ranks: The ranks that share them.
            micro: The elements of a batch.
            count: The number of elements in all, if there are as many.
        """
        options = {"split": self.split("validation"), **self.options}
        try:
            every = WindowLoader(self.data, self.window, 1, **options)
        except DataError as error:
            if "no window" not in str(error):
                raise
            return None
        size = min(micro, max(1, len(every) // ranks.world))
        loader = WindowLoader(
            self.data,
            self.window,
            size,
            seed=VALIDATION_SEED,
            rank=ranks.rank,
            world_size=ranks.world,
            drop_last=len(every) >= size * ranks.world,
            prefetch=1,
            **options,
        )
        return Validation(loader, count)

    def inputs(self, x: Tensor, clock: Tensor, step: int, index: Sequence[int], seed: int) -> Any:
        r"""What the objective takes, of a batch.

        Arguments:
            x: Windows, with shape :math:`(B, W, C, H, W')`.
            clock: Their clock, with shape :math:`(B, W, 4)`.
            step: The update :math:`s`.
            index: The place :math:`i` of each in the global batch.
            seed: The seed.
        """
        raise AttributeError

    def metrics(self, batches: Validation, ranks: Ranks) -> dict[str, float]:
        r"""What validation finds; the same on all ranks."""
        raise AttributeError

    def figure(self, batch: Batch) -> Figure | None:
        r"""A picture of what the network does, if it is to have one."""
        return None

    def prepare(self, folder: Path) -> None:
        r"""Writes what a run folder holds besides weights."""
        write_config(folder, self.config)

    def export(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        r"""The tensors of the weights' file."""
        return dict(weights)


class Reconstruction(nn.Module):
    r"""The loss of an autoencoder."""

    def __init__(self, network: Autoencoder, criterion: WeightedError):
        super().__init__()
        self.network, self.criterion = network, criterion

    def forward(self, x: Tensor, noise: Tensor | None) -> Tensor:
        return self.criterion(self.network(x, noise), x)


class AutoencoderTask(Task):
    r"""Trains an autoencoder on states.

    Arguments:
        config: The configuration.
        store: The store of states.
        statistics: Their statistics, and where SST is undefined, as
            :func:`appa.tasks.folders.gather` gives them.
        checkpointing: Whether activations are computed again instead of kept.
    """

    name, unit, file = "autoencoder", "states", "autoencoder.safetensors"
    dtype = torch.float16

    network: Autoencoder

    def __init__(
        self,
        config: Config,
        store: Any,
        statistics: xr.Dataset,
        *,
        checkpointing: bool = False,
    ):
        network = build_autoencoder(config, checkpointing=checkpointing)
        levels = config.training.autoencoder.level_weights
        undefined = statistics["undefined"].values if "undefined" in statistics else None
        self.criterion = WeightedError(config.channels, config.grid.weights, undefined, levels)
        super().__init__(config, store, network, Reconstruction(network, self.criterion))
        self.statistics = statistics
        self.standardizer = Standardizer.from_config(config, statistics, undefined)

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        write_statistics(folder, self.statistics)

    @property
    def units(self) -> list[nn.Module]:
        return [*self.network.encoder.levels, *self.network.decoder.levels]

    @property
    def options(self) -> dict[str, Any]:
        return {"standardizer": self.standardizer}

    def inputs(self, x: Tensor, clock: Tensor, step: int, index: Sequence[int], seed: int) -> Any:
        keys = [(seed, step, i, LATENT_NOISE) for i in index]
        noise = normal(self.network.latent_shape, keys, self.device, self.generator)
        return self._states(x), self.config.autoencoder.latent_noise * noise

    def _states(self, x: Tensor) -> Tensor:
        x = x[:, 0].to(self.device, self.criterion.area.dtype)
        # the layout that convolutions are fastest in
        fast = torch.channels_last if self.device.type == "cuda" else torch.contiguous_format
        return x.contiguous(memory_format=fast)

    @torch.no_grad()
    def metrics(self, batches: Validation, ranks: Ranks) -> dict[str, float]:
        r"""Loss and errors of reconstructions, without latent noise.

        The error of a channel is :math:`\sqrt{e_c}`, :math:`e_c` averaged over states; that of a
        variable is the mean of its levels', and `rmse` the mean of all channels'.
        """
        total = torch.zeros(len(self.config.channels), device=self.device)
        for x, _, _ in batches:
            x = self._states(x)
            total += self.criterion.errors(self.network(x), x).mean(dim=0)
        mean = ranks.mean(total / len(batches))
        loss, rmse = (mean @ self.criterion.weights).item(), mean.sqrt().cpu().numpy()
        found = {"loss": loss, "rmse": float(rmse.mean())}
        names = np.array([c.variable for c in self.config.channels])
        for name in dict.fromkeys(names.tolist()):
            found[f"rmse/{name}"] = float(rmse[names == name].mean())
        return found

    @torch.no_grad()
    def figure(self, batch: Batch) -> Figure | None:
        x = self._states(batch[0][:1])
        x, y = (t[0].float().cpu().numpy() for t in (x, self.network(x)))
        return draw_reconstruction(x, y, self.config.channels)


class Denoising(nn.Module):
    r"""The loss of a denoiser."""

    def __init__(self, network: Denoiser):
        super().__init__()
        self.network = network

    def forward(self, z: Tensor, sigma_t: Tensor, clock: Tensor, noise: Tensor) -> Tensor:
        return self.network.loss(z, sigma_t, clock, noise)


class DenoiserTask(Task):
    r"""Trains a denoiser on windows of latents.

    Arguments:
        config: The configuration.
        latents: A store of latents, with `latents_mean` and `latents_std`.
        checkpointing: Whether activations are computed again instead of kept.
    """

    name, unit, file = "denoiser", "windows", "denoiser.safetensors"
    dtype = torch.float32

    network: Denoiser

    def __init__(self, config: Config, latents: Any, *, checkpointing: bool = False):
        network = build_denoiser(config, checkpointing=checkpointing)
        super().__init__(config, latents, network, Denoising(network))
        ds = open_source(latents)
        if "latents" not in ds or "latents_mean" not in ds or "latents_std" not in ds:
            raise DataError(
                f"{latents} is no store of latents: it has {', '.join(map(str, ds.data_vars))}, "
                "expected latents, latents_mean and latents_std; write one with: appa encode"
            )
        if ds["latents"].shape[1:] != config.latent_shape:
            raise DataError(
                f"the latents of {latents} have shape {ds['latents'].shape[1:]}, those of the "
                f"configuration {config.latent_shape}; encode the store with this run's autoencoder"
            )
        self.mean, self.std = (
            torch.from_numpy(np.asarray(ds[f"latents_{name}"].values, np.float32))
            for name in ("mean", "std")
        )
        self.offset = self.mean.view(-1, 1, 1)
        spread = (self.std**2 + config.autoencoder.latent_noise**2).sqrt()
        self.scale = 1 / spread.view(-1, 1, 1)

    def to(self, device: torch.device) -> None:
        super().to(device)
        self.offset, self.scale = self.offset.to(device), self.scale.to(device)

    @property
    def window(self) -> int:
        return self.config.window

    @property
    def units(self) -> list[nn.Module]:
        return list(self.network.backbone.blocks)  # type: ignore[arg-type]

    def inputs(self, x: Tensor, clock: Tensor, step: int, index: Sequence[int], seed: int) -> Any:
        times = [uniform(seed, step, i, TIME) for i in index]
        return self._noisy(x, clock, times, step, index, seed)

    def _noisy(
        self,
        x: Tensor,
        clock: Tensor,
        times: Sequence[float],
        step: int,
        index: Sequence[int],
        seed: int,
    ) -> Any:
        t = torch.tensor(times, dtype=torch.float32)
        if self.device.type == "cuda":
            t = t.pin_memory().to(self.device, non_blocking=True)
        z, shape = x.to(self.device), x.shape[1:]
        if self.config.autoencoder.latent_noise:
            keys = [(seed, step, i, LATENT_NOISE) for i in index]
            noise = normal(shape, keys, self.device, self.generator)
            z = torch.add(z, noise, alpha=self.config.autoencoder.latent_noise)
        z = (z - self.offset) * self.scale
        noise = normal(shape, [(seed, step, i, NOISE) for i in index], self.device, self.generator)
        return z, self.network.schedule.sigma(t), clock.to(self.device), noise

    @torch.no_grad()
    def metrics(self, batches: Validation, ranks: Ranks) -> dict[str, float]:
        r"""The loss with noise that is always the same, in all and by noise level.

        Times are spread evenly over :math:`[0, 1]`; `loss/sigma_0.1_1` is the mean of windows
        whose noise level is between 0.1 and 1.
        """
        edges = torch.tensor(SIGMAS, device=self.device)
        sums = torch.zeros(2, len(SIGMAS) + 1, device=self.device)
        for x, clock, index in batches:
            # steps of the golden ratio leave no gaps, however many windows there are
            times = [(i * 0.6180339887498949) % 1.0 for i in index]
            z, sigma_t, clock, noise = self._noisy(x, clock, times, 0, index, VALIDATION_SEED)
            loss = self.network.loss(z, sigma_t, clock, noise)
            at = torch.bucketize(sigma_t, edges)
            sums[0].index_add_(0, at, loss)
            sums[1].index_add_(0, at, torch.ones_like(loss))
        losses, counts = ranks.mean(sums).cpu()
        found = {"loss": float(losses.sum() / counts.sum())}
        schedule = self.config.schedule
        bounds = (schedule.sigma_min, *SIGMAS, schedule.sigma_max)
        names = [f"loss/sigma_{a:g}_{b:g}" for a, b in itertools.pairwise(bounds)]
        for name, loss, n in zip(names, losses, counts, strict=True):
            if n:
                found[name] = float(loss / n)
        return found

    def export(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            "latents.mean": self.mean,
            "latents.std": self.std,
            **{f"denoiser.{name}": tensor for name, tensor in weights.items()},
        }
