r"""What the states and networks of a configuration weigh, from their sizes alone.

An operation is a multiplication or an addition: a 3×3 convolution from :math:`c` to :math:`d`
channels costs :math:`18 \, c \, d` a pixel. Activations and normalizations are not counted.
"""

from __future__ import annotations

from .sections import Config

__all__ = [
    "autoencoder_parameters",
    "decoder_convolutions",
    "decoder_flops",
    "denoiser_flops",
    "denoiser_parameters",
    "encoder_convolutions",
    "encoder_flops",
    "facts",
]

Convolutions = list[tuple[int, int, int]]


def encoder_convolutions(config: Config) -> Convolutions:
    r"""The encoder's convolutions, as channels in, channels out, pixels."""
    ae, pixels = config.autoencoder, _pixels(config)
    # each level but the first takes in the one before, its 2×2 pixels moved into channels
    inputs = (len(config.channels), *(4 * width for width in ae.hidden_channels))
    found = []
    for k, (blocks, width) in enumerate(zip(ae.blocks, ae.hidden_channels, strict=True)):
        found.append((inputs[k], width, pixels[k]))
        found += [(width, width, pixels[k])] * (2 * blocks)
    return [*found, (ae.hidden_channels[-1], ae.latent_channels, pixels[-1])]


def decoder_convolutions(config: Config) -> Convolutions:
    r"""The decoder's convolutions, as channels in, channels out, pixels."""
    ae, pixels = config.autoencoder, _pixels(config)
    outputs = (len(config.channels), *(4 * width for width in ae.decoder_channels))
    found = [(ae.latent_channels, ae.decoder_channels[-1], pixels[-1])]
    for k, (blocks, width) in enumerate(zip(ae.decoder_blocks, ae.decoder_channels, strict=True)):
        found += [(width, width, pixels[k])] * (2 * blocks)
        found.append((width, outputs[k], pixels[k]))
    return found


def autoencoder_parameters(config: Config) -> int:
    r"""Weights and biases of the autoencoder."""
    convolutions = encoder_convolutions(config) + decoder_convolutions(config)
    return sum((9 * c + 1) * d for c, d, _ in convolutions)


def encoder_flops(config: Config) -> int:
    r"""Operations to encode a state."""
    return sum(18 * c * d * pixels for c, d, pixels in encoder_convolutions(config))


def decoder_flops(config: Config) -> int:
    r"""Operations to decode a state."""
    return sum(18 * c * d * pixels for c, d, pixels in decoder_convolutions(config))


def denoiser_parameters(config: Config) -> int:
    r"""Weights and biases of the denoiser."""
    c, w, m = config.autoencoder.latent_channels, config.denoiser.width, config.denoiser.modulation
    patch = config.denoiser.patch
    # two clocks, each a sine and a cosine, for every hour of the window
    ends = (patch * (c + 4 * config.window) + 1) * w + (w + 1) * patch * c
    position = (3 * w + 1) * w
    modulation = (m + 1) * m + (m + 1) * 4 * w
    attention = 3 * w // 2 + 3 * w * w + (w + 1) * w
    mlp = (w + 1) * 4 * w + (4 * w + 1) * w
    return ends + position + config.denoiser.blocks * (modulation + attention + mlp)


def denoiser_flops(config: Config) -> int:
    r"""Operations to denoise a window."""
    c, w, n = config.autoencoder.latent_channels, config.denoiser.width, config.tokens
    patch = config.denoiser.patch
    ends = 2 * n * w * (patch * (2 * c + 4 * config.window) + 3 * w)
    return ends + config.denoiser.blocks * (24 * n * w * w + 4 * n * n * w)


def facts(config: Config) -> dict[str, str]:
    r"""What follows from a configuration, as text for people."""
    levels = len(config.data.levels)
    return {
        "channels": f"{len(config.channels)} ({len(config.data.surface)} surface fields, "
        f"{len(config.data.atmospheric)} on {levels} levels)",
        "state": " × ".join(map(str, config.state_shape)),
        "size": f"{_bytes(config.state_bytes)} a state in float32, "
        f"{_bytes(8760 * config.state_bytes)} a year of hours, uncompressed",
        "latent": " × ".join(map(str, config.latent_shape)),
        "compression": f"{config.compression:.1f}×",
        "tokens": f"{config.tokens:,} a window of {config.window} h",
        "parameters": f"{autoencoder_parameters(config) / 1e6:.1f} M autoencoder, "
        f"{denoiser_parameters(config) / 1e6:.1f} M denoiser",
        "operations": f"{_scaled(encoder_flops(config))} to encode a state, "
        f"{_scaled(decoder_flops(config))} to decode it, "
        f"{_scaled(denoiser_flops(config))} to denoise a window",
    }


def _scaled(flops: int) -> str:
    return f"{flops / 1e12:.2f} TFLOP" if flops >= 1e12 else f"{flops / 1e9:.2f} GFLOP"


def _bytes(size: int) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size / 1e6:.2f} MB"


def _pixels(config: Config) -> list[int]:
    r"""Pixels of each level of the autoencoder, finest first, padding included."""
    _, h, w = config.latent_shape
    return [h * w * 4**k for k in reversed(range(len(config.autoencoder.hidden_channels)))]
