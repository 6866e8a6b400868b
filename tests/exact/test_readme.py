r"""The page's figures, computed again."""

import re
from pathlib import Path

import pytest

from .tables import TABLES, lengths, read, samplers, windows

PAGE = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")


def same(page: list[str], fresh: list[str]) -> None:
    r"""Words are equal; numbers within one unit of the last digit, as platforms round."""
    number = re.compile(r"[+-]?\d+(?:\.\d+)?")
    assert len(page) == len(fresh)
    for a, b in zip(page, fresh, strict=True):
        assert number.sub("", a) == number.sub("", b), (page, fresh)
        for x, y in zip(number.findall(a), number.findall(b), strict=True):
            digits = len(x.partition(".")[2])
            assert float(x) == pytest.approx(float(y), abs=1.5 * 10**-digits, rel=5e-3), (a, b)


def test_every_table_is_there():
    for name in TABLES:
        assert list(read(PAGE, name)), f"python tools/exact_table.py {name!r}"


def test_samplers():
    for page, fresh in zip(read(PAGE, "samplers"), samplers().rows, strict=True):
        same(page, fresh)


def test_windows():
    (fresh,) = windows([(24, 12)]).rows
    same(next(row for row in read(PAGE, "windows") if row[:2] == fresh[:2]), fresh)


def test_lengths():
    (fresh,) = lengths(["ar2"], ["sequential"]).rows
    same(next(row for row in read(PAGE, "lengths") if row[:2] == fresh[:2]), fresh)
