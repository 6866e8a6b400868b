r"""What is minimized: networks with their losses.

The autoencoder's loss is the weighted error of :math:`D(E(x) + \sigma_z \epsilon)`, see
:mod:`appa.training.losses`, where :math:`x` may be the departure of a state from the normals, and
may be rotated. Circular convolutions do the same in every latent cell, so that a rotation by whole
cells is nothing new to them; by a part of a cell, it is weather the training years do not have. The
denoiser's is that of :meth:`appa.diffusion.denoiser.Denoiser.loss` on standardized latents

.. math:: \frac{z + \sigma_z \epsilon - \mu}{\sqrt{s^2 + \sigma_z^2}} , \qquad
    t \sim \mathcal{U}(0, 1) , \quad \sigma_t \text{ of the rectified schedule} .

What is random is given: it is drawn beside what is compiled, see :mod:`appa.training.noise`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..diffusion.denoiser import Denoiser
from ..nn.autoencoder import Autoencoder
from .losses import WeightedError

__all__ = ["Denoising", "Reconstruction", "rotate"]


class Reconstruction(nn.Module):
    r"""The loss of an autoencoder.

    Arguments:
        network: The autoencoder.
        criterion: The error of reconstructions.
        noise: The latent noise :math:`\sigma_z`.
        rotations: Whether states are rotated.
    """

    def __init__(
        self,
        network: Autoencoder,
        criterion: WeightedError,
        noise: float,
        rotations: bool = False,
    ):
        super().__init__()
        self.network, self.criterion, self.noise = network, criterion, noise
        self.rotations = rotations

    def departures(self, x: Tensor, turns: Tensor | None = None) -> Tensor:
        r"""What the networks see of windows of one hour: departures, rotated if told so, laid out
        as convolutions take them fastest."""
        x = self.network.departures(x[:, 0].to(self.criterion.area.dtype))
        x = x if turns is None else rotate(x, turns)
        return x.contiguous(
            memory_format=torch.channels_last if x.is_cuda else torch.contiguous_format
        )

    def forward(self, x: Tensor, noise: Tensor, turns: Tensor) -> Tensor:
        r"""The losses :math:`(B)` of states.

        Arguments:
            x: States, with shape :math:`(B, 1, C, H, W)`.
            noise: Standard noise that becomes latent noise, with shape :math:`(B, c, h, w)`.
            turns: The longitude that becomes the first, with shape :math:`(B)`; without
                rotations it stays where it is.
        """
        area = self.criterion.area
        if not self.rotations:
            x = self.departures(x)
        else:
            x = self.departures(x, turns)
            if area.shape[-1] > 1:  # coasts turn with the states
                area = rotate(area.expand(len(x), -1, -1, -1), turns)
        # turned, they are no longer at the places of the normals
        return self.criterion(self.network(x, self.noise * noise, bare=True), x, area)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    r"""Fields :math:`(B, C, H, W)` with longitude :math:`t_b` of each, from :math:`(B)`, first."""
    longitude = torch.arange(x.shape[-1], device=x.device)
    index = (longitude + turns[:, None]) % x.shape[-1]
    return x.gather(-1, index[:, None, None].expand_as(x))


class Denoising(nn.Module):
    r"""The loss of a denoiser.

    Arguments:
        network: The denoiser.
        mean: The mean :math:`\mu` of latents, with shape :math:`(C)`.
        std: Their standard deviation :math:`s`, with shape :math:`(C)`.
        noise: The latent noise :math:`\sigma_z`.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, network: Denoiser, mean: Tensor, std: Tensor, noise: float):
        super().__init__()
        self.network, self.noise = network, noise
        scale = (std**2 + noise**2).rsqrt()
        self.register_buffer("mean", mean.view(-1, 1, 1), persistent=False)
        self.register_buffer("scale", scale.view(-1, 1, 1), persistent=False)

    def forward(
        self, x: Tensor, perturbation: Tensor, noise: Tensor, sigma_t: Tensor, clock: Tensor
    ) -> Tensor:
        r"""The losses of windows.

        Arguments:
            x: Latents, with shape :math:`(B, W, C, H, W')`.
            perturbation: Standard noise that becomes latent noise, with the same shape.
            noise: Standard noise to be removed, with the same shape.
            sigma_t: Noise levels :math:`\sigma_t`, with shape :math:`(B)`.
            clock: The clock, with shape :math:`(B, W, 4)`.

        Returns:
            The losses, with shape :math:`(B)`.
        """
        dtype = self.mean.dtype
        z = (x.to(dtype) + self.noise * perturbation - self.mean) * self.scale
        return self.network.loss(z, sigma_t.to(dtype), clock.to(dtype), noise.to(dtype))
