r"""What is minimized: networks with their losses.

The autoencoder's loss is the weighted error of :math:`D(E(x) + \sigma_z \epsilon)`, see
:mod:`appa.training.losses`; the denoiser's is that of
:meth:`appa.diffusion.denoiser.Denoiser.loss` on standardized latents

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

__all__ = ["Denoising", "Reconstruction"]


class Reconstruction(nn.Module):
    r"""The loss of an autoencoder.

    Arguments:
        network: The autoencoder.
        criterion: The error of reconstructions.
        noise: The latent noise :math:`\sigma_z`.
    """

    def __init__(self, network: Autoencoder, criterion: WeightedError, noise: float):
        super().__init__()
        self.network, self.criterion, self.noise = network, criterion, noise

    def states(self, x: Tensor) -> Tensor:
        r"""The states of windows of one hour, as convolutions take them fastest."""
        fast = torch.channels_last if x.is_cuda else torch.contiguous_format
        return x[:, 0].to(self.criterion.area.dtype, memory_format=fast)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        r"""The losses :math:`(B)` of states :math:`(B, 1, C, H, W)`, given standard noise."""
        x = self.states(x)
        return self.criterion(self.network(x, self.noise * noise), x)


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
