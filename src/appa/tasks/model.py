r"""A model: autoencoder, denoiser, and the statistics between them and the world.

A state :math:`x` is standardized with the statistics of states, and encoded to a latent :math:`z`,
with the normals (:mod:`appa.tasks.normals`) where it has any. The denoiser knows latents
standardized in turn, with the mean :math:`\mu` and standard deviation :math:`\sigma` of those it
was trained on, to which noise with deviation :math:`\sigma_z` was added:

.. math:: \tilde{z} = \frac{z - \mu}{\sqrt{\sigma^2 + \sigma_z^2}} .

Everything outside :mod:`appa.nn` and :mod:`appa.diffusion` that says "latents" means
:math:`\tilde{z}`, but for latent stores, which hold :math:`z`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..config import Config
from ..data.clock import as_datetime64
from ..data.grids import Grid
from ..data.states import Standardizer
from ..diffusion.denoiser import Denoiser
from ..diffusion.sampling import Noise, hour_number
from ..errors import DataError
from ..machine import find_device, free_memory
from ..nn.autoencoder import Autoencoder
from ..observations.rain import Above
from ..observations.representation import AUTOENCODER_DIGEST, Representation
from ..observations.representation import FILE as REPRESENTATION
from ..observations.residual import STREAM, ResidualSampler
from .folders import (
    AUTOENCODER,
    DENOISER,
    UNDEFINED,
    ModelError,
    digest,
    read_weights,
    whole,
    write_config,
    write_statistics,
    write_weights,
)
from .normals import read_normals

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["RAIN", "Model", "standardizer"]

RAIN = "total_precipitation"


class Model:
    r"""Creates a model.

    Arguments:
        config: The configuration.
        autoencoder: The autoencoder.
        denoiser: The denoiser, if there is one yet.
        latent_mean: The mean :math:`\mu` of latents, with shape :math:`(c)`.
        latent_std: Their standard deviation :math:`\sigma`, with shape :math:`(c)`.
        statistics: The statistics of states and the static fields, if they are known; see
            :func:`appa.tasks.folders.gather`.
        origin: Where the model comes from, for messages.
        representation: What its decoder cannot express, if it is known; see
            :class:`appa.observations.representation.Representation`.

    Example:
        >>> model = appa.load("planet")
        >>> z = model.encode(model.standardizer.to_tensor(ds))
        >>> x = model.decode(z)

    `model.autoencoder` takes and gives the same standardized states, but its latents are :math:`z`,
    not standardized.
    """

    def __init__(
        self,
        config: Config,
        autoencoder: Autoencoder,
        denoiser: Denoiser | None = None,
        latent_mean: Tensor | None = None,
        latent_std: Tensor | None = None,
        statistics: xr.Dataset | None = None,
        origin: str = "the model",
        representation: Representation | None = None,
    ):
        self.config, self.statistics, self.origin = config, statistics, origin
        self.representation = representation
        self.autoencoder = autoencoder.eval().requires_grad_(False)
        # the layout that convolutions are fastest in, on CPUs too
        self.autoencoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._denoiser = denoiser.eval().requires_grad_(False) if denoiser is not None else None
        self._latent_mean, self._latent_std = latent_mean, latent_std
        self.standardizer = standardizer(config, statistics)
        normals = read_normals(config, statistics)
        self.autoencoder.normals = None if normals is None else normals.to(self.device)

    # ---------------------------------------------------------------- parts

    @property
    def denoiser(self) -> Denoiser:
        r"""The denoiser; an error where there is none yet."""
        if self._denoiser is None:
            raise self._untrained()
        return self._denoiser

    @property
    def latent_mean(self) -> Tensor:
        r"""The mean :math:`\mu` of latents, with shape :math:`(c)`."""
        if self._latent_mean is None:
            raise self._untrained()
        return self._latent_mean

    @property
    def latent_std(self) -> Tensor:
        r"""The standard deviation :math:`\sigma` of latents, with shape :math:`(c)`."""
        if self._latent_std is None:
            raise self._untrained()
        return self._latent_std

    @property
    def latent_scale(self) -> Tensor:
        r"""What latents are divided by, :math:`\sqrt{\sigma^2 + \sigma_z^2}`, with shape
        :math:`(c)`."""
        return torch.hypot(
            self.latent_std, torch.full_like(self.latent_std, self.config.autoencoder.latent_noise)
        )

    @property
    def latent_noise(self) -> Tensor:
        r"""The noise latents were trained with, in their standardized unit, :math:`(C, 1, 1)`."""
        noise = self.config.autoencoder.latent_noise or 1e-2
        return (noise / self.latent_scale).view(-1, 1, 1)

    @property
    def grid(self) -> Grid:
        r"""The grid of states."""
        return self.config.grid

    @property
    def device(self) -> torch.device:
        r"""Where the networks are."""
        return next(self.autoencoder.parameters()).device

    def _untrained(self) -> ModelError:
        return ModelError(
            f"{self.origin} has no {DENOISER} yet, which holds the denoiser and the statistics of "
            "its latents; train it: appa encode RUN STORE LATENTS, then appa train denoiser RUN "
            "--data LATENTS"
        )

    def to(self, device: str | torch.device) -> Model:
        r"""Moves the networks to a device, and returns the model."""
        device = find_device(device)
        self.autoencoder.to(device)
        if self._denoiser is not None:
            self._denoiser.to(device)
        if self._latent_mean is not None and self._latent_std is not None:
            self._latent_mean = self._latent_mean.to(device)
            self._latent_std = self._latent_std.to(device)
        return self

    # ---------------------------------------------------------------- states and latents

    def encode(self, x: Tensor) -> Tensor:
        r"""
        Arguments:
            x: Standardized states, with shape :math:`(*, C, H, W)`.

        Returns:
            Standardized latents :math:`\tilde{z}`, with shape :math:`(*, c, h, w)`.
        """
        z = self.autoencoder.encode(x.reshape(-1, *x.shape[-3:]))
        z = (z - self.latent_mean[:, None, None]) / self.latent_scale[:, None, None]
        return z.reshape(*x.shape[:-3], *z.shape[1:])

    def decode(self, z: Tensor) -> Tensor:
        r"""
        Arguments:
            z: Standardized latents :math:`\tilde{z}`, with shape :math:`(*, c, h, w)`.

        Returns:
            Standardized states, with shape :math:`(*, C, H, W)`.
        """
        raw = z * self.latent_scale[:, None, None] + self.latent_mean[:, None, None]
        x = self.autoencoder.decode(raw.reshape(-1, *raw.shape[-3:]))
        return x.reshape(*z.shape[:-3], *x.shape[1:])

    def reconstruct(self, x: Tensor) -> Tensor:
        r"""Encodes and decodes standardized states :math:`(B, C, H, W)`, for which no denoiser is
        needed."""
        return self.autoencoder.decode(self.autoencoder.encode(x))

    def rains(self, channel: int) -> bool:
        r"""Whether a channel is precipitation."""
        names = self.standardizer.channels if self.standardizer is not None else []
        return len(names) > channel and names[channel].variable == RAIN

    @torch.no_grad()
    def above_zero(
        self, z: Tensor, representation: Representation | None, batch: int | None = None
    ) -> dict[int, Above]:
        r"""How far decoded precipitation is above none, see
        :func:`appa.observations.rain.bounded`.

        Arguments:
            z: Standardized latents :math:`\tilde{z}`, with shape :math:`(M, L, c, h, w)`.
            representation: The covariance of what the decoder lacks.
            batch: The number of states decoded at once; by default, the members.

        Returns:
            By channel; nothing where the model has none, or nothing is known of it.
        """
        names = [c.variable for c in self.standardizer.channels] if self.standardizer else []
        if representation is None or RAIN not in names:
            return {}
        assert self.standardizer is not None
        k, flat = names.index(RAIN), z.flatten(0, 1)
        parts = [  # copies: a view would keep all channels
            self.decode(flat[i : i + (batch or len(z))].to(self.device))[:, k].clone()
            for i in range(0, len(flat), batch or len(z))
        ]
        none = (-self.standardizer.mean[k] / self.standardizer.std[k]).item()
        rate = self.rain_rate(representation)
        return {k: Above((torch.cat(parts) - none).unflatten(0, z.shape[:2]), rate)}

    def rain_rate(self, representation: Representation) -> float:
        r"""How fast the variance of what the decoder lacks of precipitation grows with it, see
        :class:`appa.observations.rain.Above`."""
        assert self.standardizer is not None
        k = [c.variable for c in self.standardizer.channels].index(RAIN)
        none = (-self.standardizer.mean[k] / self.standardizer.std[k]).item()
        std, usual = representation.std[k], representation.dataset["state"].values[k] - none
        area = representation.grid.area
        return float((area * std**2).sum() / (area * std * usual.clip(min=0)).sum())

    def linearize(self, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        r"""Decodes, and linearizes the decoder around latents.

        Arguments:
            z: Standardized latents :math:`\tilde{z}`, with shape :math:`(*, c, h, w)`.

        Returns:
            Standardized states, with shape :math:`(*, C, H, W)`, and what multiplies changes of
            latents with the decoder's Jacobian there, to changes of states.
        """
        scale, mean = self.latent_scale[:, None, None], self.latent_mean[:, None, None]
        x, product = self.autoencoder.linearize((z * scale + mean).flatten(0, -4))
        lead = z.shape[:-3]

        def changes(dz: Tensor) -> Tensor:
            return product((dz * scale).flatten(0, -4)).unflatten(0, lead)

        return x.unflatten(0, lead), changes

    def to_dataset(self, z: Tensor, times: Any, **options: Any) -> xr.Dataset:
        r"""Decodes trajectories into a canonical dataset.

        Arguments:
            z: Standardized latents, with shape :math:`(M, L, c, h, w)`.
            times: Their :math:`L` hours.
            options: `residual`, `variables`, `levels`, `latents`, `negatives`, `batch`, see
                :func:`appa.tasks.ensembles.to_dataset`.

        Returns:
            A dataset with dimensions `(member, time, ...)`. Of a model without named channels, one
            with a variable `state` that has dimensions `(member, time, channel, latitude,
            longitude)`, standardized.
        """
        from .ensembles import to_dataset

        return to_dataset(self, z, times, **options)

    @property
    def unnamed(self) -> bool:
        r"""Whether the channels have numbers only."""
        return bool(self.config.data.unnamed)

    # ---------------------------------------------------------------- draws

    def sample(
        self,
        start: Any,
        hours: int,
        members: int = 1,
        seed: int = 0,
        stride: int | None = None,
        steps: int | None = None,
        mode: str | None = None,
        batch: int = 8,
        residual: bool = True,
    ) -> xr.Dataset:
        r"""Draws trajectories from the prior: weather, but no particular one.

        Arguments:
            start: The first hour, e.g. `"2021-03-21T00"`; the prior knows the season and the hour.
            hours: The number of hours :math:`L`.
            members: The number of draws :math:`M`.
            seed: The seed. A member depends on the seed and its number alone.
            stride: The hours between windows, by default the configuration's.
            steps: The steps of the sampler, by default the configuration's.
            mode: Beyond a window, `sequential`, windows one after the other, as by default, or
                `composed`.
            batch: The number of windows denoised, and of states decoded, at once.
            residual: Whether what the decoder cannot express is drawn too, where it is known.

        Returns:
            A canonical dataset, see :meth:`to_dataset`.

        Example:
            >>> appa.load("planet").sample("2021-03-21T00", hours=24, members=4)
        """
        from .memory import ResidualMemory
        from .prior import draw_prior, prior_settings
        from .residuals import Residuals

        stride = self.config.sampling.stride if stride is None else stride
        window = self.config.window
        for name, value in (("hours", hours), ("members", members), ("steps", steps)):
            if value is not None and value < 1:
                raise DataError(f"{name} must be 1 or more, found {value}")
        if not 1 <= stride <= window or (window - stride) % 2:
            raise DataError(
                f"found a stride of {stride}, expected from 1 to the window, {window}, and "
                f"{'odd' if window % 2 else 'even'} as it: a window gives its middle hours"
            )
        first = as_datetime64(start)
        if first.ndim or first != first.astype("datetime64[h]"):
            raise DataError(f"found start {start}, expected one whole hour, e.g. 2021-03-21T00")
        times = first + np.arange(hours) * np.timedelta64(3600, "s")
        settings = prior_settings(self.config, mode=mode, stride=stride, steps=steps)
        # before much is taken: what this process keeps for later is not free
        most = ResidualMemory.of(self, hours).affordable(free_memory(self.device))
        z = draw_prior(self, times, range(members), settings, seed=seed, batch=batch)
        r = None
        if residual and self.representation is not None:
            r = Residuals(
                self,
                ResidualSampler(self.representation, device=self.device),
                z,
                lambda few: Noise(seed, few, hour_number(times), key=(STREAM,)),
                at_once=most,
                batch=batch,
            )
        return self.to_dataset(z, times, residual=r, batch=batch)

    def reanalysis(
        self,
        observations: Any,
        start: Any,
        hours: int,
        *,
        setting: str | None = None,
        **kwargs: Any,
    ) -> xr.Dataset:
        r"""Draws trajectories consistent with observations, :math:`p(x^{1:L} \mid y^{1:L})`.

        Arguments:
            observations: What :func:`appa.read_observations` takes; :py:`None` for none.
            start: The first hour, e.g. `"2021-03-21T00"`.
            hours: The number of hours :math:`L`.
            setting: The name of a setting, e.g. `"paper"`.
            kwargs: `members`, `seed`, `out`, `batch`, `workers`, `variables`, `levels`, `latents`
                and `negatives`, see :func:`appa.tasks.assimilation.reanalysis`, and single
                settings, e.g. `steps`, see :class:`appa.sections.Sampling`.

        Example:
            >>> analysis = model.reanalysis(obs, "2021-03-21T00", hours=24, members=8, seed=0)
        """
        from .assimilation import reanalysis

        return reanalysis(self, observations, start, hours, **self._settings(setting, kwargs))

    def filter(
        self,
        observations: Any,
        start: Any,
        hours: int,
        *,
        setting: str | None = None,
        **kwargs: Any,
    ) -> xr.Dataset:
        r"""Draws the last state of a period, :math:`p(x^L \mid y^{1:L})`, as :meth:`reanalysis`
        would."""
        from .assimilation import filtering

        return filtering(self, observations, start, hours, **self._settings(setting, kwargs))

    def forecast(
        self, source: xr.Dataset, hours: int, *, setting: str | None = None, **kwargs: Any
    ) -> xr.Dataset:
        r"""Draws what comes after an analysis or given states, :math:`p(x^{K+1:L} \mid x^{1:K})`.

        Arguments:
            source: An analysis, or a dataset of states.
            hours: The number of hours after its last.
            setting, kwargs: See :meth:`reanalysis`. Windows are drawn one after another, unless
                `mode="composed"` or `all_at_once=True` asks for all hours together.

        Example:
            >>> forecast = model.forecast(analysis, hours=48)
            >>> forecast = model.forecast(truth.isel(time=slice(0, 2)), hours=48, members=8)
        """
        from .assimilation import forecast

        return forecast(self, source, hours, **self._settings(setting, kwargs, ahead=True))

    def _settings(
        self, name: str | None, kwargs: dict[str, Any], ahead: bool = False
    ) -> dict[str, Any]:
        r"""Keyword arguments, single settings among them made into settings, a forecast's or
        others'."""
        from .settings import Settings

        single = {key: kwargs.pop(key) for key in list(kwargs) if key in Settings.model_fields}
        if name is not None or single:
            if ahead:
                single["all_at_once"] = kwargs.pop("all_at_once", False)
            make = Settings.ahead if ahead else Settings.of
            kwargs["settings"] = make(self.config, name, **single)
        return kwargs

    # ---------------------------------------------------------------- files

    def save(self, folder: str | Path, half: bool = False) -> Path:
        r"""Writes the model to a folder, which must not exist yet.

        Arguments:
            folder: The folder.
            half: Whether weights are stored in half precision.
        """
        with whole(folder) as partial:
            write_config(partial, self.config)
            write_weights(partial / AUTOENCODER, self.autoencoder.state_dict(), half)
            if self._denoiser is not None:
                weights = {f"denoiser.{k}": t for k, t in self._denoiser.state_dict().items()}
                latents = {"latents.mean": self.latent_mean, "latents.std": self.latent_std}
                # as it is read again: half precision makes it another
                encoder = digest(read_weights(partial / AUTOENCODER))
                write_weights(partial / DENOISER, weights | latents, half, encoder)
            if self.statistics is not None:
                write_statistics(partial, self.statistics)
            if self.representation is not None:
                rep = self.representation
                if rep.autoencoder == digest(self.autoencoder.state_dict()):  # else stale before
                    here = digest(read_weights(partial / AUTOENCODER))
                    rep = rep.assign_attrs({AUTOENCODER_DIGEST: here})
                rep.save(partial / REPRESENTATION)
        return Path(folder)

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.config.state_shape))
        latent = " × ".join(map(str, self.config.latent_shape))
        denoiser = f"windows of {self.config.window} h" if self._denoiser else "no denoiser yet"
        return f"Model({self.origin}: states {shape}, latents {latent}, {denoiser})"


def standardizer(config: Config, statistics: xr.Dataset | None) -> Standardizer | None:
    r"""What standardizes the states of a model, where its statistics are known."""
    if statistics is None or config.data.unnamed:
        return None
    mask = statistics[UNDEFINED].values if UNDEFINED in statistics else None
    if mask is None and "land_sea_mask" in statistics:
        mask = statistics["land_sea_mask"].values
    return Standardizer.from_config(config, statistics, mask)
