r"""The page's figures, computed again: those that take seconds, some of every table. The others are
written by `python tools/exact_table.py`."""

import re
from pathlib import Path

import pytest

from .tables import (
    TABLES,
    agreement,
    guidances,
    lengths,
    mixtures,
    one_window,
    read,
    samplers,
    settings,
    solvers,
    speeds,
    understated,
    windows,
)

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


def found(name: str, fresh: list[str], keys: int) -> list[str]:
    r"""The page's row whose first cells are those of a fresh one."""
    (row,) = (row for row in read(PAGE, name) if row[:keys] == fresh[:keys])
    return row


def test_one_window():
    r"""All but the mixed networks."""
    rows = one_window(["dense", "dense, 9 hours", "one observation", "none"]).rows
    assert len(rows) == 8
    for fresh in rows:
        same(found("one window", fresh, 2), fresh)


def test_understated():
    for fresh in understated(["dense", "one observation", "none"]).rows:
        same(found("understated", fresh, 1), fresh)


def test_samplers():
    for page, fresh in zip(read(PAGE, "samplers"), samplers().rows, strict=True):
        same(page, fresh)


def test_solvers():
    r"""GMRES of two iterations, and the default, of the dense network."""
    for fresh in solvers([1, 12], ["dense"]).rows:
        same(found("solvers", fresh, 3)[:6], fresh)


def test_settings():
    r"""A draft, and the default, of the dense network."""
    for fresh in settings(["`draft`", "the default"], ["dense"]).rows:
        same(found("settings", fresh, 4)[:8], fresh)


def test_guidances():
    for fresh in guidances(["mmps", "sda", "jfps"], ["dense"]).rows:
        same(found("guidances", fresh, 1)[:4], fresh)


def test_windows():
    for fresh in windows([(8, 4), (24, 12)]).rows:
        same(found("windows", fresh, 2), fresh)


def test_lengths():
    for fresh in lengths(["ar1", "ar2"], ["sequential"]).rows:
        same(found("lengths", fresh, 2), fresh)


def test_agreement():
    r"""Of windows one after another, with a gap in three days."""
    (fresh,) = agreement(["sequential"], ["gap"]).rows
    page = found("agreement", fresh, 1)
    same([page[0], page[3]], fresh)


def test_mixtures():
    names = ("`mmps`, `curvature: 0`", "`sda`", "`tmpd`", "`jfps`", "`diffpir`", "`dps`")
    rows = mixtures(names).rows
    assert len(rows) == len(names)
    for fresh in rows:
        same(found("mixtures", fresh, 2), fresh)


def test_speeds():
    for fresh in speeds([64], ["the default"]).rows:
        same(found("speeds", fresh, 1)[:2], fresh)
