r"""Denoising trajectories of any length, with a denoiser of windows.

Windows of :math:`W` hours follow one another every :math:`\Delta` hours, the *stride*. Each knows
its middle best, so a trajectory :math:`z^{1:L}` takes from each window its middle :math:`\Delta`
hours, and its ends from the first and the last: with :math:`a = (W - \Delta) / 2` and
:math:`b = a + \Delta`,

.. math::
    d(z_t^{1:L})^{i} = d_\phi(z_t^{n \Delta + 1 : n \Delta + W})^{i - n \Delta}
    \quad \text{where} \quad n \Delta + a < i \leq n \Delta + b .

Windows must fill the trajectory: :math:`L \geq W`, and :math:`L - W` a multiple of :math:`\Delta`.
Other lengths are padded with hours that nobody looks at, see :func:`padded_length`.
"""

from __future__ import annotations

from typing import Any

import azula.noise
import torch
from azula.denoise import Denoiser as AzulaDenoiser
from azula.denoise import DiracPosterior
from torch import Tensor

from ..data.clock import as_datetime64, clock_features
from .denoiser import Denoiser

__all__ = ["TrajectoryDenoiser", "compose", "joints", "padded_length"]


def padded_length(length: int, window: int, stride: int) -> int:
    r"""The least length from :math:`L` on that windows fill.

    Example:
        >>> [padded_length(L, 24, 12) for L in (1, 24, 25, 36, 72)]
        [24, 24, 36, 36, 72]
    """
    return window + max(0, -(-(length - window) // stride)) * stride


def joints(length: int, window: int, stride: int) -> list[int]:
    r"""The hours at which another window begins to give the trajectory.

    Example:
        >>> joints(48, 24, 12)
        [18, 30]
    """
    windows = (length - window) // stride + 1
    return [(window + stride) // 2 + n * stride for n in range(windows - 1)]


def compose(windows: Tensor, stride: int) -> Tensor:
    r"""Composes windows into a trajectory.

    Arguments:
        windows: Windows, with shape :math:`(B, N, W, *)`.
        stride: The hours :math:`\Delta` between them.

    Returns:
        The trajectory, with shape :math:`(B, W + (N - 1) \Delta, *)`.
    """
    a = (windows.shape[2] - stride) // 2
    b = a + stride
    first, inner, last = windows[:, 0, :a], windows[:, :, a:b].flatten(1, 2), windows[:, -1, b:]
    return torch.cat((first, inner, last), dim=1)


class TrajectoryDenoiser(AzulaDenoiser):
    r"""Creates a denoiser of trajectories, as :mod:`azula.sample` takes one.

    Its time is even in :math:`\log \sigma`, which suits multi-step samplers: see
    :class:`azula.noise.VESchedule`.

    Arguments:
        denoiser: The denoiser :math:`d_\phi` of windows.
        dates: The hours of the trajectory, `datetime64` with shape :math:`(L)`, or :math:`(B, L)`
            where members have hours of their own. Windows must fill them.
        stride: The hours :math:`\Delta` between windows.
        batch: The number of windows denoised at once. By default, all.
    """

    def __init__(self, denoiser: Denoiser, dates: Any, stride: int, batch: int | None = None):
        super().__init__()
        self.denoiser, self.stride, self.batch = denoiser, stride, batch
        self.schedule = azula.noise.VESchedule(
            denoiser.schedule.sigma_min, denoiser.schedule.sigma_max
        )
        clock = torch.from_numpy(clock_features(as_datetime64(dates))).float()
        self.clock = clock if clock.ndim == 3 else clock[None]
        length, window = self.clock.shape[1], denoiser.window
        if not 0 < stride <= window or (window - stride) % 2:
            raise ValueError(f"a stride of {stride} leaves no middle of a window of {window} hours")
        if length != padded_length(length, window, stride):
            raise ValueError(
                f"windows of {window} hours every {stride} do not fill {length} hours, but "
                f"{padded_length(length, window, stride)}; pad the trajectory"
            )

    def forward(self, x_t: Tensor, t: Tensor, **kwargs: Any) -> DiracPosterior:
        r"""
        Arguments:
            x_t: Noisy trajectories :math:`z_t`, with shape :math:`(B, L, C, H, W')`.
            t: The time :math:`t`, with shape :math:`()`.

        Returns:
            The posterior, whose mean has shape :math:`(B, L, C, H, W')`.
        """
        _, sigma_t = self.schedule(t)
        return DiracPosterior(mean=self.mean(x_t, sigma_t))

    def mean(self, z_t: Tensor, sigma_t: Tensor | float) -> Tensor:
        r"""The composed mean :math:`d(z_t^{1:L})`, with the shape of :math:`z_t`.

        Arguments:
            z_t: Noisy trajectories, with shape :math:`(B, L, C, H, W')`.
            sigma_t: The noise level :math:`\sigma_t`, with shape :math:`()`.
        """
        window = self.denoiser.window
        windows = z_t.unfold(1, window, self.stride).movedim(-1, 2)  # (B, N, W, C, H, W')
        clock = self.clock.to(z_t).expand(z_t.shape[0], -1, -1)
        clock = clock.unfold(1, window, self.stride).movedim(-1, 2).flatten(0, 1)
        flat = windows.flatten(0, 1)
        n = self.batch or len(flat)
        means = [
            self.denoiser(flat[i : i + n], sigma_t, clock[i : i + n])
            for i in range(0, len(flat), n)
        ]
        return compose(torch.cat(means).unflatten(0, windows.shape[:2]), self.stride)
