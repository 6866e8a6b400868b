r"""The order of the files: those that take longest begin first."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # Where files are distributed over processes, pytest-xdist would begin with those of the most
    # tests: one of few that take long, begun last, would keep one process while others idle.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)  # stable: in a file, nothing moves
