r"""Long trajectories, window after window.

Composed windows denoise together, each without knowing what lies outside it: across gaps in the
observations and in forecasts that loses variance. Here windows are drawn one after another, each
given :math:`p` hours that were drawn before,

.. math:: z^{s : s + W} \sim p(z^{s : s + W} \mid z^{s : s + p}, y^{s + p : s + W}) .

A window's last hours know nothing of later observations. With a *lag* of :math:`\ell` hours they
are left out and drawn again by the next window, so that all hours but the last see at least
:math:`\ell` hours ahead:

    | given p | kept W - p - ℓ | left out ℓ |
                       | given p | kept W - p - ℓ | left out ℓ |

*Sweeps* go over the trajectory again, and draw the interior of windows anew given two hours on both
sides (Gibbs sampling), which carries what later observations say back across windows. Two, since
what is given holds a sweep back.

Hours that are given enter as observations of the latents themselves, with a little noise: that of
the latents the denoiser was trained with. A denoiser that is a network keeps to them less closely
than that, and hours beside them would jump: see :func:`joined`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.clock import as_datetime64
from .denoiser import Denoiser
from .guidance import Guidance
from .likelihood import HoursLikelihood, Likelihood, StackedLikelihood
from .sampling import Keeper, Noise, Sampler, hour_numbers, integrate, padded
from .trajectory import TrajectoryDenoiser

__all__ = ["Window", "draw_sequential", "joined", "schedule", "windows"]

BESIDE = 2  # hours given on each side of what a sweep draws


@dataclass(frozen=True)
class Window:
    r"""A window to be drawn: its first hour, which of its hours are given, which are kept.

    Hours count from the beginning of the window, those of `given` and `kept`, or of the trajectory,
    `start`.
    """

    start: int
    given: tuple[int, ...]
    kept: slice


def windows(
    length: int, window: int, known: int, past: int, lag: int, new: int | None = None
) -> list[Window]:
    r"""The windows of a first pass.

    Arguments:
        length: The hours of the trajectory, at least a window.
        window: The hours :math:`W` of a window.
        known: The first hours of the trajectory, if any, that are known already.
        past: The hours :math:`p` given to each window.
        lag: The hours :math:`\ell` at the end of each window that the next draws again.
        new: The hours a window adds, by default all it can, :math:`W - p - \ell`.

    Example:
        >>> [(w.start, len(w.given), w.kept) for w in windows(60, 24, 0, 4, 8)]
        [(0, 0, slice(0, 16)), (12, 4, slice(4, 16)), (24, 4, slice(4, 16)), (36, 4, slice(4, 24))]
    """
    if not 0 < past < window or not 0 <= lag < window - past:
        raise ValueError(
            f"{past} hours given and a lag of {lag} leave nothing of a window of {window} hours"
        )
    if new is not None and not 0 < new <= window - past - lag:
        raise ValueError(
            f"a window of {window} hours with {past} given and a lag of {lag} adds from 1 to "
            f"{window - past - lag} hours, found {new}"
        )
    drawn, found = known, []
    while drawn < length:
        start = min(max(0, drawn - past), length - window)
        end = start + window
        if end < length:
            end -= lag
        if new is not None and drawn:
            end = min(end, drawn + new)
        found.append(Window(start, tuple(range(drawn - start)), slice(drawn - start, end - start)))
        drawn = end
    return found


def sweep(length: int, window: int, known: int, number: int) -> list[Window]:
    r"""The windows of a sweep, from the end of the trajectory to its beginning.

    Interiors of :math:`W - 4` hours cover the trajectory, in every other sweep those between.
    """
    size = window - 2 * BESIDE
    if size < 1:
        raise ValueError(f"{BESIDE} hours on both sides fill a window of {window} hours")
    edges = [known, *range(known + (size if number % 2 else max(1, size // 2)), length, size)]
    found = []
    for a, b in zip(edges, [*edges[1:], length], strict=True):
        start = min(max(0, a - BESIDE), length - window)
        given = [i for i in range(window) if not a <= start + i < b]
        found.append(Window(start, tuple(given), slice(a - start, b - start)))
    return found[::-1]


def draw_sequential(
    denoiser: Denoiser,
    dates: Any,
    members: Iterable[int],
    *,
    guidance: Guidance,
    sampler: Sampler,
    seed: int = 0,
    observe: Callable[[int, Sequence[int]], Likelihood | None] = lambda start, hours: None,
    known: Tensor | None = None,
    noise: Tensor | float = 1e-2,
    past: int = 4,
    lag: int = 0,
    new: int | None = None,
    sweeps: int = 0,
    batch: int | None = None,
    advance: Callable[[], None] = lambda: None,
    keeper: Keeper | None = None,
    name: str = "draw",
) -> Tensor:
    r"""Draws trajectories of standardized latents window after window.

    Arguments:
        denoiser: The denoiser of windows.
        dates: The hours, `datetime64` with shape :math:`(L)`, those of `known` included, or
            :math:`(M, L)` where members have hours of their own.
        members: Which members.
        guidance: How windows are guided, by observations and by the hours given.
        sampler: The sampler of each window.
        seed: The seed.
        observe: What is observed of the window that begins at an hour of the trajectory, given
            which of its hours are drawn.
        known: The first latents of the trajectory where they are known, with shape
            :math:`(M, K, C, H, W')`: a forecast's past.
        noise: The standard deviation of the noise of hours that are given, with a shape that
            expands to a latent's.
        past: The hours :math:`p` given to each window.
        lag: The hours :math:`\ell` at the end of each window that the next draws again.
        new: The hours a window adds at most.
        sweeps: The number of sweeps after the first pass.
        batch: The number of windows denoised at once. By default, all.
        advance: What is called after every step.
        keeper: Where to keep each step, see :func:`~.sampling.integrate`.
        name: The name it is kept under.

    Returns:
        Standardized latents, with shape :math:`(M, L, C, H, W')`.
    """
    members = list(members)
    hours = as_datetime64(dates)
    asked = hours.shape[-1]
    if asked < denoiser.window:
        hours = padded(hours, denoiser.window, denoiser.window)
    like = next(denoiser.parameters())
    z = torch.zeros(len(members), hours.shape[-1], *denoiser.latent_shape).to(like)
    first = 0 if known is None else known.shape[1]
    if known is not None:
        z[:, :first] = known.to(like)

    plan = schedule(asked, denoiser.window, first, past, lag, new, sweeps)
    kept = keeper.load(name) if keeper else None
    done = 0
    if kept is not None:
        z, done = kept["z"].to(like), int(kept["step"])
    for number, window in enumerate(plan):
        if number < done:
            for _ in range(sampler.steps):
                advance()
            continue
        here = slice(window.start, window.start + denoiser.window)
        given = list(window.given)
        free = [i for i in range(denoiser.window) if i not in window.given]
        parts = [observe(window.start, free)]
        if given:
            parts.append(HoursLikelihood(z[:, here][:, given], given, noise))
        found = [part for part in parts if part is not None]
        likelihood = StackedLikelihood(found) if len(found) > 1 else (found or [None])[0]
        trajectory = TrajectoryDenoiser(
            denoiser, hours[..., here], denoiser.window, batch, guidance, [likelihood]
        )
        drawn = integrate(
            trajectory.mean,
            z[0, here].shape,
            sampler,
            denoiser.schedule,
            Noise(seed, members, hour_numbers(hours[..., here]), key=(number,)),
            like,
            advance=advance,
            keeper=keeper,
            name=f"{name}/window-{number}",
        )
        drawn = joined(drawn, z[:, here], window, past)
        z[:, here][:, window.kept] = drawn[:, window.kept]
        if keeper is not None:
            keeper.save(name, {"z": z}, number + 1, force=True)
            keeper.done(f"{name}/window-{number}")
    return z[:, :asked]


def joined(drawn: Tensor, before: Tensor, window: Window, hours: int) -> Tensor:
    r"""A window that continues the hours it was given.

    What it misses the given hour beside those it keeps by, :math:`e`, is taken off these, less
    with each hour: :math:`e \, (1 - j / (n + 1))` at the :math:`j`-th of :math:`n`.

    Arguments:
        drawn: The window, with shape :math:`(M, W, C, H, W')`.
        before: The trajectory as it was there, with the same shape.
        window: Which hours were given, and which are kept.
        hours: The number of hours :math:`n`.
    """
    drawn, first, last = drawn.clone(), window.kept.start, window.kept.stop - 1
    n = min(hours, last - first + 1)
    ramp = 1 - torch.arange(1, n + 1).to(drawn)[:, None, None, None] / (hours + 1)
    for beside, kept, share in (
        (first - 1, slice(first, first + n), ramp),
        (last + 1, slice(last + 1 - n, last + 1), ramp.flip(0)),
    ):
        if beside in window.given:
            missed = drawn[:, beside] - before[:, beside]
            drawn[:, kept] -= share * missed[:, None]
    return drawn


def schedule(
    length: int, window: int, known: int, past: int, lag: int, new: int | None, sweeps: int
) -> list[Window]:
    r"""All windows, those of the first pass and of the sweeps; one draws what is no longer."""
    first = windows(max(length, window), window, known, past, lag, new)
    if length <= window:
        return first
    return first + [w for k in range(sweeps) for w in sweep(length, window, known, k)]
