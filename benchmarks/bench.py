r"""A world that is measured, and what sections of a report are made of.

A section is a generator of rows: what a row is called, and what measures it. Floors are the
operations counted (:func:`windows.operations`) at the speed of a large product of matrices in the
same precision, measured in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from common import matmul, measure
from windows import World, operations

from appa.config import load_config

__all__ = ["AT_ONCE", "Bench", "Rows"]

Rows = Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]

AT_ONCE = (None, 12, 6, 3, 1)  # hours decoded at once, until it fits in memory


class Bench:
    r"""A world, made when it is first asked for, and what is measured of it once.

    Arguments:
        preset: A configuration.
        device: Where.
        precision: That of the networks.
        rounds: Calls that count in each measurement.
        iterations: The number of iterations of the solver.
        stations: The number of stations, by default one in a hundred grid points.
    """

    def __init__(
        self,
        preset: str,
        device: torch.device,
        precision: str,
        rounds: int = 3,
        iterations: int = 2,
        stations: int | None = None,
    ):
        self.config, self.device, self.precision = load_config(preset), device, precision
        self.rounds, self.iterations = rounds, iterations
        self.make = lambda: World(preset, device, precision, iterations, stations)

    @cached_property
    def world(self) -> World:
        return self.make()

    @cached_property
    def counts(self) -> dict[str, float]:
        return operations(self.config)

    @cached_property
    def rate(self) -> float:
        r"""Operations a second."""
        return matmul(self.device, getattr(torch, self.precision))

    def measure(self, run: Callable[[], Any], flops: float = 0.0, units: int = 1) -> dict[str, Any]:
        r"""Milliseconds of a state or window, memory, and the distance from the floor."""
        found = measure(run, self.device, self.rounds)
        row = {"ms": 1e3 * found["seconds"] / units, "GiB": found["gibibytes"]}
        if flops:
            floor = 1e3 * flops / self.rate
            row |= {"TFLOP": flops / 1e12, "floor ms": floor, "× floor": row["ms"] / floor}
        return row

    def floor(self, hours: int) -> float:
        r"""Seconds of the fewest operations of a guided evaluation."""
        k, c = self.iterations, self.counts
        decoder = c["decode"] + k * (c["product"] + c["transposed"])
        flops = c["denoise"] + k * c["denoise back"] + hours * decoder
        return flops / self.rate
