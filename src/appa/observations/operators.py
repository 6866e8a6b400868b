r"""Observation operators: what a state would have been observed as, hour by hour.

The :math:`n` observations of an hour with values :math:`v`, errors :math:`\sigma` and observables
:math:`a(x)` are whitened,

.. math:: y = \frac{v - r}{\sigma} , \qquad \mathcal{A}(x) = \frac{a(x) - r}{\sigma} , \qquad
    y - \mathcal{A}(x) \sim \mathcal{N}(0, I) \text{ for the true } x ,

where the reference :math:`r` keeps single precision where it matters. A variable of the state is
referred to its mean, so that :math:`\mathcal{A}` is a weighted sum of standardized values, in which
nothing cancels; anything else is referred to the value observed, hence :math:`y = 0`. Departures of
an angle are taken around the circle by :math:`\mathcal{A}` itself, and :math:`y - \mathcal{A}(x)`
holds for all.

An operator gathers the few numbers of a state that it needs. Its cost is linear in the number of
observations, and nothing in it has the size of observations times grid points.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.clock import as_datetime64
from ..data.variables import VARIABLES
from ..errors import DataError
from .heights import Heights
from .observables import Observable, find, split_input
from .parts import Derived, Linear, Part
from .stencils import Gather, StateSpace, Stencils, single
from .tables import Table, Tables

if TYPE_CHECKING:
    from .collection import Observations

__all__ = ["HourOperator", "Operators", "StateSpace", "compile_observations", "incomparable"]


@dataclass(eq=False)
class HourOperator:
    r"""All observations of one hour.

    Arguments:
        hour: The hour.
        y: The whitened values, with shape :math:`(n)`.
        error: One standard deviation in the observable's unit, that of the adjustment to the
            station's height included, with shape :math:`(n)`.
        reference: What whitened values are relative to, in the observable's unit, with shape
            :math:`(n)`.
        rows: A table of :math:`n` rows: `variable`, `level` in hPa (NaN without), `latitude`,
            `longitude`, `station` (empty without), `place` (a number that the same place has in
            every hour; of the model's own grid points, their flat index), `value`, `error`,
            `gridded`.
        parts: What evaluates the rows, one after the other.
        shape: That of states, :math:`(C, H, W)`.
    """

    hour: np.datetime64
    y: Tensor
    error: Tensor
    reference: Tensor
    rows: pd.DataFrame
    parts: tuple[Part, ...]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.y)

    @property
    def linear(self) -> bool:
        r"""Whether :math:`\mathcal{A}` is linear in the state."""
        return all(isinstance(part, Linear) for part in self.parts)

    @property
    def curved(self) -> Tensor:
        r"""Which rows are of an observable that is far from linear, see
        :mod:`appa.observations.parts`, with shape :math:`(n)`."""
        each = torch.tensor([part.curved for part in self.parts])
        counts = torch.tensor([len(part) for part in self.parts])
        return each.repeat_interleave(counts).to(self.y.device)

    def __call__(self, x: Tensor) -> Tensor:
        r"""
        Arguments:
            x: Standardized states, with shape :math:`(B, C, H, W)`.

        Returns:
            The whitened :math:`\mathcal{A}(x)`, with shape :math:`(B, n)`, in single precision at
            least. It can be differentiated twice.
        """
        if x.ndim != 4 or tuple(x.shape[1:]) != self.shape:
            raise DataError(
                f"states have shape {tuple(x.shape)}, expected (B, *{self.shape}): a batch of "
                "states on the grid the observations were compiled for"
            )
        x = x if x.dtype == torch.float64 else x.to(torch.float32)
        return torch.cat([part(x) for part in self.parts], dim=1)

    def departure(self, x: Tensor) -> Tensor:
        r"""The whitened departure :math:`y - \mathcal{A}(x)`, with shape :math:`(B, n)`."""
        a = self(x)
        return self.y.to(a.dtype) - a

    def tangent(self, x: Tensor, dx: Tensor) -> Tensor:
        r"""The product with the Jacobian of :math:`\mathcal{A}`.

        Arguments:
            x: Standardized states, with shape :math:`(B, C, H, W)`.
            dx: Changes of them, likewise.

        Returns:
            The changes of :math:`\mathcal{A}(x)`, with shape :math:`(B, n)`.
        """
        return torch.cat([part.tangent(x, dx) for part in self.parts], dim=1)

    def inflate(self, factor: Tensor) -> HourOperator:
        r"""The same with larger errors; with infinitely larger ones, it is as if nothing was seen.

        Arguments:
            factor: What errors are multiplied by, with shape :math:`(n)`.
        """
        factor = factor.to(self.error)
        split = factor.split([len(part) for part in self.parts])
        error = self.error * factor
        return replace(
            self,
            y=self.y / factor,
            error=error,
            rows=self.rows.assign(error=self.rows["error"].to_numpy() * factor.cpu().numpy()),
            parts=tuple(part.inflate(f) for part, f in zip(self.parts, split, strict=True)),
        )

    def to(self, device: Any) -> HourOperator:
        r"""The same on another device."""
        return replace(
            self,
            y=self.y.to(device),
            error=self.error.to(device),
            reference=self.reference.to(device),
            parts=tuple(part.to(device) for part in self.parts),
        )


class Operators(list["HourOperator | None"]):
    r"""The operators of consecutive hours.

    `excluded` is a table of what could not be compared with the model's states: `reason`, `count`
    and an `example`.
    """

    excluded: pd.DataFrame

    def __init__(self, operators: Iterable[HourOperator | None], excluded: pd.DataFrame):
        super().__init__(operators)
        self.excluded = excluded


def compile_observations(
    observations: Observations,
    space: StateSpace,
    hours: Any,
    heights: Heights | None = None,
) -> Operators:
    r"""Compiles observations into operators.

    Arguments:
        observations: The observations. Those of other hours are left alone.
        space: Where states live.
        hours: The hours, with shape :math:`(L)`.
        heights: How stations are compared at their heights.

    Returns:
        A list of one operator an hour, :py:`None` where nothing was seen. What cannot be compared
        with the model's states is left out, and counted in its attribute `excluded`.

    Example:
        >>> operators = compile_observations(obs, StateSpace.of(model), hours)
        >>> operators[0].departure(model.decode(z[:, 0]))
    """
    compiler = Compiler(space, heights or Heights(), Tables(observations, space))
    found = [compiler(h) for h in np.atleast_1d(as_datetime64(hours)).astype("datetime64[h]")]
    return Operators(found, compiler.excluded)


def incomparable(observations: Observations, space: StateSpace, hours: Any) -> pd.DataFrame:
    r"""What :func:`compile_observations` would leave out, an hour in memory at a time.

    Returns:
        A table of `reason`, `count` and an `example`.
    """
    compiler = Compiler(space, Heights(), Tables(observations, space))
    for hour in np.atleast_1d(as_datetime64(hours)).astype("datetime64[h]"):
        compiler(hour)
    return compiler.excluded


class Compiler:
    r"""Makes operators of tables, and keeps count of what it leaves out."""

    def __init__(self, space: StateSpace, heights: Heights, tables: Tables):
        self.space, self.heights, self.tables = space, heights, tables
        self.reasons: dict[str, tuple[int, str]] = {}

    @property
    def excluded(self) -> pd.DataFrame:
        r"""The table of `reason`, `count` and `example`."""
        rows = [(reason, *found) for reason, found in self.reasons.items()]
        return pd.DataFrame(rows, columns=["reason", "count", "example"])

    def __call__(self, hour: np.datetime64) -> HourOperator | None:
        r"""The operator of an hour."""
        # Variables of the state are one part for each number of points a row takes.
        itself: dict[int, list[tuple[Table, NDArray, NDArray, NDArray]]] = {}
        others: list[tuple[Table, Derived]] = []
        for table in self.tables.of(hour):
            observable = self.find(table, hour)
            if observable is None:
                continue
            table = self.check(table, observable, hour)
            if not len(table):
                continue
            if observable.itself:
                for piece in self.split(table, observable):
                    row = self.itself(piece, observable)
                    itself.setdefault(row[1].shape[1], []).append(row)
            else:
                others.append(self.derived(table, observable))

        parts: list[Part] = []
        tables: list[Table] = []
        references: list[NDArray] = []
        for rows in itself.values():
            some, index, weight, reference = zip(*rows, strict=True)
            gather = Gather(torch.from_numpy(np.concatenate(index)), single(np.concatenate(weight)))
            parts.append(Linear(gather))
            tables += some
            references += reference
        for table, part in others:
            parts.append(part)
            tables.append(table)
            references.append(table.value)
        if not tables:
            return None

        frame, reference = self.tables.rows(tables), np.concatenate(references)
        value, error = frame["value"].to_numpy(), frame["error"].to_numpy()
        return HourOperator(
            hour=hour,
            y=single((value - reference) / error),
            error=single(error),
            reference=single(reference),
            rows=frame,
            parts=tuple(parts),
            shape=self.space.shape,
        )

    # ---------------------------------------------------------------- what is left out

    def find(self, table: Table, hour: np.datetime64) -> Observable | None:
        r"""The observable of a table, if the model has what it is computed from."""
        try:
            observable = find(table.name)
        except DataError:
            self.exclude("unknown variable", table, np.ones(len(table), bool), hour)
            return None
        inputs = [split_input(text) for text in observable.inputs]
        if any(variable not in self.space for variable, _ in inputs):
            self.exclude("variable the model lacks", table, np.ones(len(table), bool), hour)
            return None
        levels = np.array([level for _, level in inputs if level is not None], dtype=np.float64)
        if not self.space.within(levels).all():
            self.exclude("level beyond the model's", table, np.ones(len(table), bool), hour)
            return None
        return observable

    def check(self, table: Table, observable: Observable, hour: np.datetime64) -> Table:
        r"""The rows of a table that can be compared with a state."""
        table = self.exclude("not a number", table, ~np.isfinite(table.value), hour)
        bad = ~(table.error > 0) | ~np.isfinite(table.error)
        table = self.exclude("no or non-positive error", table, bad, hour)
        if observable.levels == "level":
            table = self.exclude("level missing", table, np.isnan(table.level), hour)
            beyond = ~self.space.within(table.level)
            table = self.exclude("level beyond the model's", table, beyond, hour)
        else:
            table = replace(table, level=np.full(len(table), np.nan))

        if any(VARIABLES[split_input(text)[0]].missing for text in observable.inputs):
            stencils = self.stencils(table)
            table = self.exclude("sea surface on land", table, ~stencils.at_sea, hour)
        if not table.gridded and self.at_height(observable):
            if observable.name == "surface_pressure":  # 12 Pa a metre: no guess will do
                lacks = np.isnan(table.elevation)
                table = self.exclude("pressure without elevation", table, lacks, hour)
            elevation, ground = self.elevations(table)
            far = np.abs(elevation - ground) > self.heights.limit
            reason = f"more than {self.heights.limit:g} m from the model's ground"
            table = self.exclude(reason, table, far, hour)
        return table

    def exclude(self, reason: str, table: Table, bad: NDArray, hour: np.datetime64) -> Table:
        r"""Leaves rows out, and counts them."""
        if not bad.any():
            return table
        count, example = self.reasons.get(reason, (0, ""))
        if not example:
            first = table.take(np.flatnonzero(bad)[:1])
            station = str(self.tables.stations[first.station[0]])
            place = f"{first.latitude[0]:.2f}, {first.longitude[0]:.2f}"
            level = "" if np.isnan(first.level[0]) else f" at {first.level[0]:g} hPa"
            example = f"{first.name}{level} at {place}{station and f' ({station})'}, {hour}"
        self.reasons[reason] = count + int(bad.sum()), example
        return table.take(~bad)

    # ---------------------------------------------------------------- what is compared

    def stencils(self, table: Table) -> Stencils:
        r"""The stencils of a table's places."""
        return Stencils(self.space, table.latitude, table.longitude, table.point)

    def at_height(self, observable: Observable) -> bool:
        r"""Whether an observable is compared at the station's height."""
        return observable.name == "2m_temperature" or "elevation" in observable.keywords

    def elevations(self, table: Table) -> tuple[NDArray, NDArray]:
        r"""Heights of stations and of the ground below them, one standing for the other if it is
        unknown, and 0 for both."""
        ground = self.stencils(table).ground()
        known = np.isfinite(table.elevation)
        if ground is None:
            elevation = np.where(known, table.elevation, 0.0)
            return elevation, elevation
        return np.where(known, table.elevation, ground), ground

    def split(self, table: Table, observable: Observable) -> list[Table]:
        r"""Rows on levels and rows between them: half the numbers, and twice."""
        if observable.levels != "level":
            return [table]
        on = self.space.on_level(table.level)
        if on.all():
            return [table]
        return [table.take(keep) for keep in (on, ~on) if keep.any()]

    def itself(self, table: Table, observable: Observable) -> tuple:
        r"""Indices, whitened weights and references of a variable of the state."""
        level = table.level if observable.levels == "level" else None
        index, weight, reference = self.stencils(table).affine(observable.name, level)
        if observable.name == "2m_temperature":
            shift, error = self.heights.temperature_shift(*self.elevations(table))
            reference = reference + shift
            table = replace(table, error=np.hypot(table.error, error))
        return table, index, weight / table.error[:, None], reference

    def derived(self, table: Table, observable: Observable) -> tuple[Table, Derived]:
        r"""The part of a derived observable, and the table with the errors of its heights."""
        stencils, space = self.stencils(table), self.space
        elevation, ground = self.elevations(table)
        if observable.name == "surface_pressure":
            error = self.heights.pressure_error(table.value, elevation, ground)
            table = replace(table, error=np.hypot(table.error, error))

        place, shape, own = None, (len(table),), observable.levels == "level"
        where: dict[str, Any] = {
            "pressure": single(100 * (table.level if own else space.levels[:, None])),
            "elevation": single(elevation),
            "ground": single(ground),
            "latitude": single(table.latitude),
            "longitude": single(table.longitude),
        }
        if not observable.local:
            place, shape = self.result(table, observable), space.grid.shape
            h, w = shape
            lat, lon = np.repeat(space.grid.latitude, w), np.tile(space.grid.longitude, h)
            stencils = Stencils(space, lat, lon, np.arange(h * w))
            height = np.zeros(shape) if space.ground is None else space.ground
            where = {
                "pressure": single(100 * space.levels[:, None, None]),
                "elevation": single(height),
                "ground": single(height),
                "latitude": single(space.grid.latitude[:, None]),
                "longitude": single(space.grid.longitude),
            }

        inputs, columns = [], []
        for text in observable.inputs:
            variable, level = split_input(text)
            if VARIABLES[variable].surface or level is not None:
                gather, k = stencils.gather(variable, level), 0
            elif own and observable.local:
                gather, k = stencils.gather(variable, table.level), 0
            else:
                gather, k = stencils.column(variable), len(space.levels)
            inputs.append(gather)
            columns.append(k)
        where["lapse"] = self.heights.lapse
        part = Derived(
            observable,
            tuple(inputs),
            {key: where[key] for key in observable.keywords},
            tuple(columns),
            single(table.value),
            single(table.error),
            place,
            shape,
        )
        return table, part

    def result(self, table: Table, observable: Observable) -> Gather:
        r"""What interpolates a whole field, of one level or all, to places."""
        index, weight = self.stencils(table).scalar
        if observable.levels == "level":
            h, w = self.space.grid.shape
            k, vertical = self.space.bracket(table.level)
            index = (k[:, :, None] * (h * w) + index[:, None, :]).reshape(len(table), -1)
            weight = (vertical[:, :, None] * weight[:, None, :]).reshape(index.shape)
        return Gather(torch.from_numpy(index), single(weight))
