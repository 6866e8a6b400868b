r"""Observables of a user's own, from a file and in other processes."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler

import pytest
import torch

from appa.errors import DataError
from appa.observations.observables import Observable, find
from appa.observations.own import load_observables

FILE = """
import appa

@appa.observable({name!r}, units="K2", inputs=("2m_temperature",))
def square(t):
    return t**2
"""


def test_a_file_is_loaded(tmp_path, registry):
    r"""Again, too; and another of the same name beside it."""
    for folder in ("a", "b"):
        path = tmp_path / folder / "my-own.py"
        path.parent.mkdir()
        path.write_text(FILE.format(name=f"square_{folder}"))
        for _ in range(2):
            assert load_observables(path) == [f"square_{folder}"]
    function = find("square_a").function
    assert function is not None
    assert float(function(torch.tensor(3.0))) == 9


def test_a_file_that_cannot_be(tmp_path, registry):
    for text, match in (
        ("x = 1\n", "registers no observable"),
        ("\nimport nothing_of_this_name\n", "line 2 fails: ModuleNotFoundError"),
    ):
        (tmp_path / "own.py").write_text(text)
        with pytest.raises(DataError, match=match):
            load_observables(tmp_path / "own.py")
    for name in ("none.py", "own.csv"):
        with pytest.raises(DataError, match=f"{name} for observables; give a Python file"):
            load_observables(tmp_path / name)


def test_functions_from_elsewhere_may_be_registered(tmp_path, registry):
    path = tmp_path / "own.py"
    path.write_text(
        "import appa\n"
        "from torch.nn.functional import tanhshrink\n"
        "appa.observable('root', units='K', inputs=('2m_temperature',))(tanhshrink)\n"
    )
    assert load_observables(path) == ["root"]


def test_other_processes_know_it_by_its_name(registry):
    r"""Errors of an observable are looked up so."""
    mine = replace(find("10m_wind_speed"), name="mine")
    sent = ForkingPickler.dumps(mine)
    with pytest.raises(DataError):
        find("mine")
    assert pickle.loads(sent) == find("mine") == mine


def test_what_another_process_does_not_know(registry):
    r"""A function without a name there arrives as one that says so; copies here keep it."""
    known = find("10m_wind_speed")
    assert pickle.loads(ForkingPickler.dumps(known)) == known
    lacking = replace(known, name="mine", function=lambda u, v: u + v)
    assert copy.deepcopy(lacking).function is lacking.function
    there: Observable = pickle.loads(ForkingPickler.dumps(lacking))
    assert (there.name, there.inputs) == ("mine", known.inputs)
    assert there.function is not None
    with pytest.raises(DataError, match=r"observable 'mine'.*top level of a module.*workers=1"):
        there.function(1.0, 2.0)
