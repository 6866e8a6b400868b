r"""Trajectories of the prior: weather, but no particular one.

A window is drawn whole. Longer trajectories are drawn window after window, each given the last
hours of the one before, or composed, as the settings say: composed windows know nothing of each
other beyond their overlap, and lose variance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from ..config import Config
from ..data.clock import as_datetime64
from ..diffusion.sampling import draw
from ..diffusion.sequential import draw_sequential, schedule
from ..diffusion.trajectory import padded_length
from ..machine import free_memory
from ..progress import progress
from .memory import Memory
from .model import Model
from .precision import Precision
from .settings import Settings

__all__ = ["draw_prior", "prior_settings", "window_count"]


def prior_settings(config: Config, **chosen: Any) -> Settings:
    r"""How the prior is drawn where nothing else is chosen, see :meth:`Settings.of`.

    The sampler is `multistep` and the mode `auto` whatever the configuration has: the published
    sampler loses variance on its own grid of noise levels, and composed windows lose it. Where
    hours before are all that is given, solves need not be as close as with observations: hours
    drawn again agree with those given to within the noise of latents either way.
    """
    sampling = config.sampling
    ours = {
        "sampler": "multistep",
        "mode": "auto",
        "iterations": min(sampling.iterations, 8),
        "tolerance": max(sampling.tolerance, 0.05),
    }
    return Settings.of(config, **ours | {k: v for k, v in chosen.items() if v is not None})


def window_count(hours: int, window: int, settings: Settings) -> int:
    r"""The windows :math:`N` each step of a trajectory of :math:`L` hours denoises, or, one after
    the other, the windows it is made of."""
    if settings.sequential(hours, window):
        return len(schedule(hours, window, 0, settings.past, 0, settings.new, settings.sweeps))
    return 1 + (padded_length(hours, window, settings.stride) - window) // settings.stride


def draw_prior(
    model: Model,
    dates: Any,
    members: Iterable[int],
    settings: Settings,
    *,
    seed: int = 0,
    batch: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> Tensor:
    r"""Draws trajectories from the prior.

    Arguments:
        model: The model.
        dates: The hours, `datetime64` with shape :math:`(L)`, or :math:`(M, L)` where members have
            hours of their own.
        members: Which members :math:`M`.
        settings: How they are drawn; without observations no window has a lag.
        seed: The seed.
        batch: The number of windows denoised at once at most, by default as many as fit in memory
            where windows are given hours before, and else all.
        advance: What is called after every step with the windows of a member it denoised, instead
            of showing progress.

    Returns:
        Standardized latents, with shape :math:`(M, L, C, H, W')`.
    """
    hours = as_datetime64(dates)
    window, length = model.config.window, hours.shape[-1]
    count = window_count(length, window, settings)
    if advance is None:
        with progress(settings.sampler_of().steps * count, "drawing", unit="steps") as bar:
            return draw_prior(
                model, dates, members, settings, seed=seed, batch=batch, advance=bar.advance
            )
    sampler = settings.sampler_of()
    precision = Precision.of(settings, model.device)
    denoiser = precision.denoiser(model.denoiser, settings.understated)
    if not settings.sequential(length, window):
        return draw(
            denoiser,
            hours,
            members,
            stride=settings.stride,
            seed=seed,
            batch=batch,
            sampler=sampler,
            advance=lambda: advance(count),
        )
    # products of guidance keep graphs, which windows drawn without it do not
    most, _ = Memory.of(model, settings).affordable(free_memory(model.device), 0, 0, 0)
    return draw_sequential(
        denoiser,
        hours,
        members,
        guidance=settings.guidance_of(),
        sampler=sampler,
        seed=seed,
        noise=model.latent_noise,
        past=settings.past,
        new=settings.new,
        sweeps=settings.sweeps,
        batch=min(batch or most, most),
        advance=lambda: advance(1),
    )
