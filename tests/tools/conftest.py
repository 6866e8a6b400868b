r"""What tests of the tools share."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def tools(monkeypatch):
    r"""Imports a tool by its name."""
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module
