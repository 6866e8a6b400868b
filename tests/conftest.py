r"""The order of the files: those that take longest begin first. And what compilers do."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Programs of JAX run for seconds here and take half a minute each to compile: a fifth less so.
# Processes that tests begin inherit it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")


def pytest_configure(config: pytest.Config) -> None:
    # Where files are distributed over processes, pytest-xdist would begin with those of the most
    # tests: one of few that take long, begun last, would keep one process while others idle.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)  # stable: in a file, nothing moves


@pytest.fixture
def registry() -> Iterator[None]:
    r"""Observables that a test registers are forgotten after it, and those of the package not."""
    from appa.observations.observables import REGISTRY, known

    known()
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)
