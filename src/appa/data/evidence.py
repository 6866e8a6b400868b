r"""What a block of hours shows, hour by hour and channel by channel, in one reading.

A block is summarized on its own and neighbours are joined by their edges, so that the hours of a
store can be examined in any order, on any number of workers, each read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ..errors import StoreError
from .orientation import Mirror, Reference, likeness
from .reduction import cause, read
from .variables import VARIABLES, Channel, Variable, plausible, plausible_mean

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Evidence", "Run", "Scan", "join", "runs"]


@dataclass(frozen=True)
class Run:
    r"""Consecutive hours of a channel with the same fault.

    Arguments:
        kind: What is wrong.
        channel: Where, as an index into the channels.
        start, stop: The hours, as indices.
        detail: What tells faults of a kind apart, such as the unit found.
        points: The most grid points concerned in an hour.
        low, high: The least and greatest value concerned.
        note: What was said about the first hour, in words.
    """

    kind: str
    channel: int
    start: int
    stop: int
    detail: str = ""
    points: int = 0
    low: float = np.inf
    high: float = -np.inf
    note: str = ""

    @property
    def fault(self) -> tuple[str, int, str]:
        return self.kind, self.channel, self.detail


def runs(found: Sequence[Run]) -> list[Run]:
    r"""Joins runs of the same fault that follow one another."""
    joined: list[Run] = []
    for run in sorted(found, key=lambda run: (run.fault, run.start)):
        last = joined[-1] if joined else None
        if last is not None and last.fault == run.fault and last.stop >= run.start:
            joined[-1] = replace(
                last,
                stop=run.stop,
                points=max(last.points, run.points),
                low=min(last.low, run.low),
                high=max(last.high, run.high),
            )
        else:
            joined.append(run)
    return joined


@dataclass
class Evidence:
    r"""What :math:`T` consecutive hours of :math:`C` channels show.

    Arguments:
        r, change: Likeness of odd parts to the hour before, each :math:`(T, C)`.
        pattern: Correlation of odd parts with the reference, where conclusive, :math:`(T, C)`.
        still: Whether nothing changed since the hour before, :math:`(T, C)`.
        coast: Points whose SST is defined and should not be or the reverse: as the field lies,
            and mirrored, :math:`(T, 2)`.
        first, last: The first and last hour on the thinned grid, :math:`(C, h, w)`.
        runs: Everything else.
    """

    r: np.ndarray
    change: np.ndarray
    pattern: np.ndarray
    still: np.ndarray
    coast: np.ndarray
    first: np.ndarray
    last: np.ndarray
    mirror: Mirror
    runs: list[Run] = field(default_factory=list)


def join(parts: list[Evidence]) -> Evidence:
    r"""Joins the evidence of consecutive blocks, comparing the hours where they meet."""
    for before, after in pairwise(parts):
        mirror = before.mirror
        if mirror.possible:
            r, change = likeness(mirror.odd(after.first), mirror.odd(before.last))
            after.r[0], after.change[0] = r, change
        after.still[0] = _same(before.last, after.first)
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("r", "change", "pattern", "still", "coast")
    }
    return Evidence(
        **arrays,
        first=parts[0].first,
        last=parts[-1].last,
        mirror=parts[0].mirror,
        runs=runs([run for part in parts for run in part.runs]),
    )


class Scan:
    r"""Examines a block of hours.

    Arguments:
        ds: A canonical dataset.
        channels: Its channels, those of a variable next to each other and in its levels' order.
        mirror: The thinned grid.
        reference: What odd parts should look like, if known.
        land: Where SST is to be undefined, :math:`(H, W)`, if the store has SST.
    """

    def __init__(
        self,
        ds: xr.Dataset,
        channels: Sequence[Channel],
        mirror: Mirror,
        reference: Reference | None,
        land: np.ndarray | None,
    ):
        self.ds, self.channels, self.mirror = ds, list(channels), mirror
        self.reference, self.land = reference, land
        self.times = ds["time"].values

    def __call__(self, part: tuple[int, int]) -> Evidence:
        start, stop = part
        shape = (stop - start, len(self.channels))
        evidence = Evidence(
            r=np.full(shape, np.nan, np.float32),
            change=np.zeros(shape, np.float32),
            pattern=np.zeros(shape, np.float32),
            still=np.zeros(shape, bool),
            coast=np.zeros((shape[0], 2), np.int32),
            first=np.empty((shape[1], *self.mirror.shape), np.float32),
            last=np.empty((shape[1], *self.mirror.shape), np.float32),
            mirror=self.mirror,
        )
        c = 0
        for name in dict.fromkeys(channel.variable for channel in self.channels):
            x, lost = self._read(name, start, stop)
            self._variable(evidence, VARIABLES[name], x, set(lost), c, part)
            evidence.runs += [
                Run("damaged", k, start + t, start + t + 1, note=note)
                for k in range(c, c + x.shape[1])
                for t, note in lost.items()
            ]
            c += x.shape[1]
        evidence.runs = runs(evidence.runs)
        return evidence

    def _read(self, name: str, start: int, stop: int) -> tuple[np.ndarray, dict[int, str]]:
        r"""The values :math:`(T, L, H, W)` of a variable, NaN in hours that cannot be read, and why
        those cannot."""
        try:
            return read(self.ds, name, start, stop), {}
        except StoreError:
            pass
        sizes = self.ds[name].sizes
        shape = (stop - start, sizes.get("level", 1), sizes["latitude"], sizes["longitude"])
        x, lost = np.full(shape, np.nan, np.float32), {}
        for t in range(stop - start):
            try:
                x[t] = read(self.ds, name, start + t, start + t + 1)[0]
            except StoreError as error:
                lost[t] = cause(error.__cause__ or error)
        return x, lost

    def _variable(
        self,
        evidence: Evidence,
        var: Variable,
        x: np.ndarray,
        lost: set[int],
        c: int,
        part: tuple[int, int],
    ) -> None:
        r"""Adds what the values :math:`(T, L, H, W)` of a variable show, but for lost hours; its
        first channel is c."""
        thin = self.mirror.thin(x)
        own = slice(c, c + x.shape[1])
        evidence.still[1:, own] = _same(thin[:-1], thin[1:])
        if var.missing is not None and self.land is not None:
            undefined = np.isnan(x[:, 0])
            for k, land in enumerate((self.land, self.land[::-1])):
                evidence.coast[:, k] = (undefined != land).sum((-2, -1))
            evidence.coast[list(lost)] = 0

        low, high = x.min((-2, -1)), x.max((-2, -1))  # undefined where any value is
        mean = self.mirror.mean(thin) if self.mirror.possible else None
        for k in range(x.shape[1]):
            level = self.channels[c + k].level
            limits, means = plausible(var.name, level), plausible_mean(var.name, level)
            with np.errstate(invalid="ignore"):
                good = (low[:, k] >= limits[0]) & (high[:, k] <= limits[1])
                if mean is not None:
                    good &= (mean[:, k] >= means[0]) & (mean[:, k] <= means[1])
            good[list(lost)] = True
            for t in np.flatnonzero(~good):
                average = None if mean is None else float(mean[t, k])
                found = self._values(var, x[t, k], average, limits, means)
                if any(kind == "range" for kind, *_ in found):
                    # A wild value would drown the pattern it stands in.
                    wild = ~((thin[t, k] >= limits[0]) & (thin[t, k] <= limits[1]))
                    thin[t, k] = np.where(wild, np.nan, thin[t, k])
                hour = part[0] + int(t)
                evidence.runs += [Run(kind, c + k, hour, hour + 1, *rest) for kind, *rest in found]

        evidence.first[own], evidence.last[own] = thin[0], thin[-1]
        if not self.mirror.possible:
            return
        odd = self.mirror.odd(thin)
        evidence.r[1:, own], evidence.change[1:, own] = likeness(odd[1:], odd[:-1])
        if self.reference is not None:
            evidence.pattern[:, own] = self.reference.compare(
                self.channels[own], thin, odd, self.times[slice(*part)]
            )

    def _values(
        self,
        var: Variable,
        x: np.ndarray,
        mean: float | None,
        limits: tuple[float, float],
        means: tuple[float, float],
    ) -> list[tuple]:
        r"""What is wrong with the values of a field :math:`(H, W)`: `(kind, detail, points,
        low, high)` each."""
        found: list[tuple] = []
        infinite, undefined = np.isinf(x), np.isnan(x)
        if infinite.any():
            found.append(("infinite", "", int(infinite.sum())))
        if undefined.any() and var.missing is None:
            found.append(("undefined", "", int(undefined.sum())))
        values = x[~(infinite | undefined)].astype(np.float64)
        if values.size == 0:
            return found
        low, high = float(values.min()), float(values.max())
        wrong = (values < limits[0]) | (values > limits[1])
        off = mean is not None and not means[0] <= mean <= means[1]
        if not wrong.any() and not off:
            return found
        for unit, scale, offset in var.mistaken:
            right = limits[0] <= scale * low + offset and scale * high + offset <= limits[1]
            if right and (mean is None or means[0] <= scale * mean + offset <= means[1]):
                return [*found, ("units", unit, values.size, low, high)]
        if wrong.any():
            worst = values[wrong]
            found.append(("range", "", worst.size, float(worst.min()), float(worst.max())))
        else:
            found.append(("range", "mean", values.size, mean, mean))
        return found


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    r"""Whether fields :math:`(*, h, w)` are identical, and not one value everywhere: a region may
    stay dry for days."""
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        low = np.min(a, axis=(-2, -1), initial=np.inf, where=np.isfinite(a))
        high = np.max(a, axis=(-2, -1), initial=-np.inf, where=np.isfinite(a))
    return equal.all((-2, -1)) & (low < high)
