r"""What the loop trains: a network, its data, and what is said about it on the way."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from ..config import Config
from ..data.sources import open_source
from ..data.states import Standardizer
from ..data.variables import Channel
from ..data.windows import WindowLoader
from ..diffusion.denoiser import Denoiser
from ..errors import ConfigError, DataError
from ..nn.autoencoder import Autoencoder
from ..nn.layers import softclip
from ..sections import Training
from ..tasks.building import build_autoencoder, build_denoiser
from ..tasks.folders import digest, write_statistics
from ..tasks.normals import read_normals
from .keeping import keep_config
from .losses import WeightedError
from .noise import keys, normal, uniform
from .objectives import Denoising, Reconstruction
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
NOISE, LATENT_NOISE, TIME, TURNS = 0, 1, 2, 3


class Task(ABC):
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
    made_by: str | None = None  # the digest of the autoencoder whose latents it learns, if known
    scale: str  # the digest of what standardizes the data
    dtype: torch.dtype  # of hours that are kept on the device

    def __init__(self, config: Config, data: Any, network: nn.Module, objective: nn.Module):
        self.config, self.data = config, data
        self.network, self.objective = network, objective
        self.device = torch.device("cpu")

    def to(self, device: torch.device) -> None:
        r"""Moves the network to a device."""
        self.device = device
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
    @abstractmethod
    def units(self) -> list[nn.Module]:
        r"""The modules whose parameters are gathered together where they are cut."""

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
        place: dict[str, Any] | None = None,
    ) -> Feed:
        r"""The batches of the training split, see :func:`appa.training.resident.make_feed`."""
        return make_feed(
            self.data,
            self.window,
            micro,
            ranks.device,
            accumulation=accumulation,
            dtype=self.dtype,
            resident=resident,
            place=place,
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

    @abstractmethod
    def inputs(self, x: Tensor, clock: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        r"""What the objective takes, of a batch.

        Arguments:
            x: Windows, with shape :math:`(B, W, C, H, W')`.
            clock: Their clock, with shape :math:`(B, W, 4)`.
            keys: The keys of what is random about them, with shape :math:`(B)`.
        """

    @abstractmethod
    def metrics(self, batches: Validation, ranks: Ranks) -> dict[str, float]:
        r"""What validation finds; the same on all ranks."""

    def figure(self, batch: Batch) -> Figure | None:
        r"""A picture of what the network does, if it is to have one."""
        return None

    def prepare(self, folder: Path) -> dict[str, tuple[Any, Any]]:
        r"""Writes what a run folder holds besides weights, and tells what stays as it is there; see
        :func:`appa.training.keeping.keep_config`."""
        return keep_config(folder, self.config, self.name)

    def export(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        r"""The tensors of the weights' file."""
        return dict(weights)


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
    objective: Reconstruction

    def __init__(
        self,
        config: Config,
        store: Any,
        statistics: xr.Dataset,
        *,
        checkpointing: bool = False,
    ):
        self.channels = [c for c in config.channels if isinstance(c, Channel)]
        if len(self.channels) < len(config.channels):
            raise ConfigError(
                f"data.unnamed: {config.data.unnamed} channels without names cannot be told in a "
                "store; to train, give data.surface, data.atmospheric and data.levels instead"
            )
        network = build_autoencoder(config, checkpointing=checkpointing)
        given = config.training.autoencoder
        weights = given.level_weights, given.variable_weights
        undefined = statistics["undefined"].values if "undefined" in statistics else None
        self.criterion = WeightedError(self.channels, config.grid.weights, undefined, *weights)
        noise = config.autoencoder.latent_noise
        network.normals = read_normals(config, statistics)
        self.objective = Reconstruction(network, self.criterion, noise, given.rotations)
        super().__init__(config, store, network, self.objective)
        self.statistics = statistics
        self.standardizer = states = Standardizer.from_config(config, statistics, undefined)
        scales = {"mean": states.mean, "std": states.std}
        if states.sea is not None:
            scales["sea"] = torch.from_numpy(states.sea)
        if network.normals is not None:
            scales["normals"] = network.normals
        self.scale = digest(scales)

    def prepare(self, folder: Path) -> dict[str, tuple[Any, Any]]:
        stay = super().prepare(folder)
        write_statistics(folder, self.statistics)
        return stay

    @property
    def units(self) -> list[nn.Module]:
        return [*self.network.encoder.levels, *self.network.decoder.levels]

    @property
    def options(self) -> dict[str, Any]:
        return {"standardizer": self.standardizer}

    def inputs(self, x: Tensor, clock: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        turns = (uniform(keys, TURNS) * x.shape[-1]).long()
        return x, normal(keys, self.network.latent_shape, LATENT_NOISE), turns

    @torch.no_grad()
    def metrics(self, batches: Validation, ranks: Ranks) -> dict[str, float]:
        r"""Loss and errors of reconstructions, without latent noise, and saturated latents.

        The error of a channel is :math:`\sqrt{e_c}`, :math:`e_c` averaged over states; that of a
        variable is the mean of its levels', and `rmse` the mean of all channels'. `saturated` is
        the share of latents beyond 0.8 of their bound: what is all there learns no more.
        """
        total = torch.zeros(len(self.channels), device=self.device)
        bound, beyond = self.network.saturation, torch.zeros((), device=self.device)

        def look(_: nn.Module, __: Any, z: Tensor) -> None:
            if bound is not None:
                beyond.add_((softclip(z.float(), bound).abs() > 0.8 * bound).float().mean())

        # the network is called whole: on many ranks its parts may not have their weights
        hook = self.network.encoder.register_forward_hook(look)
        for x, _, _ in batches:
            x = self.objective.departures(x.to(self.device))
            total += self.criterion.errors(self.network(x, bare=True), x).mean(dim=0)
        hook.remove()
        mean, share = ranks.mean(total / len(batches)), ranks.mean(beyond / len(batches))
        loss, rmse = self.criterion.mean(mean).item(), mean.sqrt().cpu().numpy()
        found = {"loss": loss, "rmse": float(rmse.mean())}
        if bound is not None:
            found["saturated"] = share.item()
        names = np.array([c.variable for c in self.channels])
        for name in dict.fromkeys(names.tolist()):
            found[f"rmse/{name}"] = float(rmse[names == name].mean())
        return found

    @torch.no_grad()
    def figure(self, batch: Batch) -> Figure | None:
        x = batch[0][:1, 0].to(self.device, self.criterion.area.dtype)
        x, y = (t[0].float().cpu().numpy() for t in (x, self.network(x)))
        return draw_reconstruction(x, y, self.channels)


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
    objective: Denoising

    def __init__(self, config: Config, latents: Any, *, checkpointing: bool = False):
        ds = open_source(latents)
        what = named(latents)
        if "latents" not in ds or "latents_mean" not in ds or "latents_std" not in ds:
            raise DataError(
                f"{what} is no store of latents: it has {', '.join(map(str, ds.data_vars))}, "
                "expected latents, latents_mean and latents_std; write one with: appa encode"
            )
        if ds["latents"].shape[1:] != config.latent_shape:
            raise DataError(
                f"the latents of {what} have shape {ds['latents'].shape[1:]}, those of the "
                f"configuration {config.latent_shape}; encode the store with this run's autoencoder"
            )
        for name in ("latents_mean", "latents_std"):
            if ds[name].shape != config.latent_shape[:1]:
                raise DataError(
                    f"{name} of {what} has shape {ds[name].shape}, expected one number for each of "
                    f"{config.latent_shape[0]} channels; encode the store again with: appa encode"
                )
        self.made_by = ds.attrs.get("autoencoder")
        self.mean, self.std = (
            torch.from_numpy(np.asarray(ds[f"latents_{name}"].values, np.float32))
            for name in ("mean", "std")
        )
        if not (self.mean.isfinite().all() and (self.std > 0).all() and self.std.isfinite().all()):
            raise DataError(
                f"latents_mean or latents_std of {what} are not finite, or not positive: encode "
                "the store again with: appa encode"
            )
        self.scale = digest({"mean": self.mean, "std": self.std})
        network = build_denoiser(config, checkpointing=checkpointing)
        noise = config.autoencoder.latent_noise
        self.objective = Denoising(network, self.mean, self.std, noise)
        super().__init__(config, latents, network, self.objective)

    @property
    def window(self) -> int:
        return self.config.window

    @property
    def units(self) -> list[nn.Module]:
        return list(self.network.backbone.blocks)  # type: ignore[arg-type]

    def inputs(
        self, x: Tensor, clock: Tensor, keys: Tensor, times: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        r"""See :meth:`Task.inputs`; times :math:`t` may be given, with shape :math:`(B)`."""
        perturbation, noise = (normal(keys, x.shape[1:], k) for k in (LATENT_NOISE, NOISE))
        t = uniform(keys, TIME) if times is None else times
        return x, perturbation, noise, self.network.schedule.sigma(t), clock

    @torch.no_grad()
    def metrics(self, batches: Validation, ranks: Ranks) -> dict[str, float]:
        r"""The loss with noise that is always the same, in all and by noise level.

        Times are spread evenly over :math:`[0, 1]`; `loss/sigma_0.1_1` is the mean of windows
        whose noise level is between 0.1 and 1.
        """
        edges = torch.tensor(SIGMAS, device=self.device)
        sums = torch.zeros(2, len(SIGMAS) + 1, device=self.device)
        for x, clock, index in batches:
            x, clock = x.to(self.device), clock.to(self.device)
            which = keys(VALIDATION_SEED, 0, index[0], len(index), self.device)
            # steps of the golden ratio leave no gaps, however many windows there are
            times = torch.tensor([(i * 0.6180339887498949) % 1.0 for i in index])
            inputs = self.inputs(x, clock, which, times.to(self.device))
            loss, at = self.objective.forward(*inputs), torch.bucketize(inputs[3], edges)
            sums[0].index_add_(0, at, loss.float())
            sums[1].index_add_(0, at, torch.ones_like(loss).float())
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


def named(data: Any) -> str:
    r"""What messages call a store."""
    return "the dataset" if isinstance(data, xr.Dataset) else str(data)
