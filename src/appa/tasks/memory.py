r"""What a guided evaluation holds in memory, from sizes alone.

With :math:`b` the bytes of a number in the precision of the networks:

* of each observed hour, what the decoder's linearization keeps, which is two numbers a channel and
  one in single precision a pixel in each residual block
  (:meth:`appa.nn.layers.ResidualBlock.linearize`), the state, and changes of it;
* of each window, the denoiser's graph. In each block, with :math:`D` channels a token, it is the
  residual stream, queries, keys and values, the former two also rotated, what attention gives, and
  the hidden layer: :math:`11 D` numbers, and a few for each head. Where networks are in half
  precision, the residual stream and what queries and keys are normalized from are not;
* of each observation, the solver's vectors in single precision;
* and once, what is in use while a layer is computed, and copies of weights: in half precision, or
  as kernels of a CPU arrange them.

Probes of curvature (:mod:`appa.diffusion.guidance.mmps`) come before the solver, and hold no more
than it does: of each hour a state beside that of the linearization, of each observation four
departures, of each window five latents.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from ..costs import decoder_convolutions, denoiser_parameters
from ..sections import Config
from .model import Model
from .precision import Precision
from .settings import Settings

__all__ = ["Memory", "denoiser_graph", "largest_window", "linearization"]

SHARE = 0.75  # of what is free may be taken: allocators leave gaps, kernels want workspaces
STATES = 3  # that are held of an hour: itself, a change, and what is joined of its parts
VECTORS = 8  # of the solver, beside its basis, which is put together in the end
LAYERS = 8  # that are held while one of the decoder is computed
BLOCK = 10  # likewise, of a residual block
WEIGHTS = 2  # copies of the networks' weights, in the layouts and precision that kernels ask for
LIBRARIES = 2**25  # bytes of their own: kernels made for a shape, buffers of threads
HIDDEN = 16  # numbers for each channel of a token while a block of the transformer is computed


@dataclass(frozen=True)
class Memory:
    r"""Bytes of a guided evaluation.

    Arguments:
        config: The configuration.
        iterations: The number of iterations of the solver.
        size: The bytes of a number in the networks.
    """

    config: Config
    iterations: int = 2
    size: int = 4

    @classmethod
    def of(cls, model: Model, settings: Settings) -> Memory:
        r"""What evaluations of a model hold, drawn with settings."""
        precision = Precision.of(settings, model.device)
        return cls(model.config, settings.iterations, precision.size)

    @property
    def window(self) -> int:
        r"""Of each window."""
        section, latent = self.config.denoiser, self.config.latent_shape
        own = denoiser_graph(self.config, self.size)
        working = 4 * HIDDEN * self.config.tokens * section.width
        latents = 4 * self.config.window * latent[0] * latent[1] * latent[2]
        return own + working + (self.iterations + VECTORS) * latents

    @property
    def hour(self) -> int:
        r"""Of each observed hour of a window."""
        # states are in single precision where they are compared with observations
        return linearization(self.config, self.size) + 4 * STATES * self._state

    @property
    def observation(self) -> int:
        r"""Of each observation of a window."""
        return 4 * (2 * self.iterations + VECTORS)

    def once(self, states: int) -> int:
        r"""Of the evaluation, with as many states decoded at once.

        Cosines and sines of the attentions are shared by windows."""
        section = self.config.denoiser
        layers = [LAYERS * max(c, d) * pixels for c, d, pixels in decoder_convolutions(self.config)]
        layers += [BLOCK * width * pixels for width, pixels, _ in _blocks(self.config)]
        decoder = sum((9 * c + 1) * d for c, d, _ in decoder_convolutions(self.config))
        weights = WEIGHTS * self.size * (decoder + denoiser_parameters(self.config))
        angles = 4 * section.blocks * self.config.tokens * section.width
        return self.size * max(layers) * states + weights + angles + LIBRARIES

    def total(self, members: int, hours: int, observations: int, states: int) -> int:
        r"""All of it.

        Arguments:
            members: The number of windows that are evaluated together.
            hours: The number of hours of each that are decoded at once.
            observations: The number of observations of a window.
            states: The number of states that a layer of the decoder takes at once, at most.
        """
        each = self.window + hours * self.hour + observations * self.observation
        return members * each + self.once(min(states, members * hours))

    def affordable(
        self, free: int, hours: int, observations: int, states: int
    ) -> tuple[int, int | None]:
        r"""The number of members whose windows fit in memory at once, and of hours that are decoded
        at once if not even one member's do.

        Arguments:
            free: The bytes that are free.
            hours: The number of hours of a window that are observed.
            observations, states: See :meth:`total`.
        """
        most = int(SHARE * free)

        def fits(members: int, hours: int) -> bool:
            return self.total(members, hours, observations, states) <= most

        if not hours or fits(1, hours):
            each = self.total(2, hours, observations, 0) - self.total(1, hours, observations, 0)
            # more members never take less: looked for by halves, they may be a hundred thousand
            several = range(2, most // each + 1)
            return 1 + bisect_left(several, True, key=lambda n: not fits(n, hours)), None
        return 1, max((n for n in range(1, hours) if fits(1, n)), default=1)

    @property
    def _state(self) -> int:
        r"""The numbers of a state, padding included."""
        _, h, w = self.config.latent_shape
        factor = 2 ** (len(self.config.autoencoder.hidden_channels) - 1)
        return len(self.config.channels) * h * w * factor**2


def largest_window(sizes: Iterable[int], window: int) -> tuple[int, int]:
    r"""The number of hours of a window that are observed, and of observations in these, at most:
    those of the hours that have most, side by side or not.

    Arguments:
        sizes: The number of observations of each hour that has any.
        window: The number of hours of a window.
    """
    largest = sorted(sizes)[-window:]
    return len(largest), sum(largest)


def linearization(config: Config, size: int = 4) -> int:
    r"""The bytes that a linearization of the decoder keeps of a state."""
    return sum(n * (2 * size * width + 4) * pixels for width, pixels, n in _blocks(config))


def denoiser_graph(config: Config, size: int = 4) -> int:
    r"""The bytes that products with the denoiser's Jacobian keep of a window."""
    section, half = config.denoiser, size < 4
    token = (10 if half else 11) * size * section.width
    token += 12 * section.width if half else 0  # residual stream, queries and keys, once more
    token += 4 * (3 * section.heads + 2)  # norms, and sums of attention's weights
    modulation = 7 * size * section.width
    return section.blocks * (config.tokens * token + modulation)


def _blocks(config: Config) -> list[tuple[int, int, int]]:
    r"""The decoder's residual blocks: channels, pixels, and the number of such blocks."""
    ae, (_, h, w) = config.autoencoder, config.latent_shape
    pixels = [h * w * 4**k for k in reversed(range(len(ae.hidden_channels)))]
    levels = zip(ae.decoder_channels, pixels, ae.decoder_blocks, strict=True)
    return [level for level in levels if level[2]]
