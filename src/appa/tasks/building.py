r"""From a configuration to its networks, with fresh weights."""

from __future__ import annotations

from ..config import Config
from ..diffusion.denoiser import Denoiser
from ..diffusion.schedule import RectifiedSchedule
from ..nn.autoencoder import Autoencoder
from ..nn.transformer import Transformer

__all__ = ["build_autoencoder", "build_denoiser"]


def build_autoencoder(config: Config, *, checkpointing: bool = False) -> Autoencoder:
    r"""The autoencoder of a configuration."""
    ae = config.autoencoder
    return Autoencoder(
        len(config.channels),
        config.grid.shape,
        ae.latent_channels,
        ae.hidden_channels,
        ae.blocks,
        ae.decoder_channels,
        ae.decoder_blocks,
        longitude=ae.longitude,
        saturation=ae.saturation,
        checkpointing=checkpointing,
    )


def build_denoiser(config: Config, *, checkpointing: bool = False) -> Denoiser:
    r"""The denoiser of a configuration."""
    channels, h, w = config.latent_shape
    section = config.denoiser
    backbone = Transformer(
        channels,
        (config.window, h, w),
        section.width,
        section.blocks,
        section.heads,
        section.modulation,
        section.patch,
        checkpointing=checkpointing,
    )
    schedule = RectifiedSchedule(config.schedule.sigma_min, config.schedule.sigma_max)
    return Denoiser(backbone, schedule)
