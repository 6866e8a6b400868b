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

Observations guide each window by those inside it, before windows are composed. Guiding the composed
trajectory instead would need the Jacobian of :math:`d`, which is neither symmetric nor definite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..data.clock import as_datetime64, clock_features
from .denoiser import Denoiser
from .guidance import Guidance
from .likelihood import Likelihood

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


class TrajectoryDenoiser:
    r"""Creates a denoiser of trajectories.

    Arguments:
        denoiser: The denoiser :math:`d_\phi` of windows.
        dates: The hours of the trajectory, `datetime64` with shape :math:`(L)`, or :math:`(B, L)`
            where members have hours of their own. Windows must fill them.
        stride: The hours :math:`\Delta` between windows.
        batch: The number of windows denoised at once. By default, all.
        guidance: How observations guide windows.
        likelihoods: What is observed of each window, :py:`None` where nothing is. By default,
            nothing at all.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        dates: Any,
        stride: int,
        batch: int | None = None,
        guidance: Guidance | None = None,
        likelihoods: Sequence[Likelihood | None] = (),
    ):
        self.denoiser, self.stride, self.batch = denoiser, stride, batch
        self.guidance, self.likelihoods = guidance, tuple(likelihoods)
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
        #: The number :math:`N` of windows.
        self.windows = (length - window) // stride + 1
        if self.likelihoods and (len(self.likelihoods) != self.windows or guidance is None):
            raise ValueError(
                f"{len(self.likelihoods)} likelihoods for {self.windows} windows, guidance "
                f"{guidance}; give both, and one likelihood or None a window"
            )

    def mean(self, z_t: Tensor, sigma_t: Tensor | float) -> Tensor:
        r"""The composed mean :math:`d(z_t^{1:L})`, with the shape of :math:`z_t`.

        Arguments:
            z_t: Noisy trajectories, with shape :math:`(B, L, C, H, W')`.
            sigma_t: The noise level :math:`\sigma_t`, with shape :math:`()`.
        """
        window = self.denoiser.window
        windows = z_t.unfold(1, window, self.stride).movedim(-1, 2)  # (B, N, W, C, H, W')
        clock = self.clock.to(z_t).expand(z_t.shape[0], -1, -1)
        clock = clock.unfold(1, window, self.stride).movedim(-1, 2)
        means = torch.empty_like(windows, memory_format=torch.contiguous_format)

        observed = [n for n, part in enumerate(self.likelihoods) if part is not None]
        others = [n for n in range(self.windows) if n not in observed]
        flat, flat_clock = windows[:, others].flatten(0, 1), clock[:, others].flatten(0, 1)
        size = self.batch or max(1, len(flat))
        parts = [
            self.denoiser(flat[i : i + size], sigma_t, flat_clock[i : i + size])
            for i in range(0, len(flat), size)
        ]
        if parts:
            means[:, others] = torch.cat(parts).unflatten(0, (len(z_t), len(others)))
        for n in observed:
            self._guide(means[:, n], windows[:, n], sigma_t, clock[:, n], self.likelihoods[n])
        return compose(means, self.stride)

    def _guide(
        self, out: Tensor, z_t: Tensor, sigma_t: Tensor | float, clock: Tensor, likelihood: Any
    ) -> None:
        r"""Writes the means of windows given what is observed of them, (B, W, C, H, W')."""
        size = self.batch or len(z_t)
        for i in range(0, len(z_t), size):
            chosen = slice(i, i + size)

            def denoise(z: Tensor, chosen: slice = chosen) -> Tensor:
                return self.denoiser(z, sigma_t, clock[chosen])

            assert self.guidance is not None
            out[chosen] = self.guidance(denoise, z_t[chosen], sigma_t, likelihood.members(chosen))
