r"""What was tuned knows on what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from appa.errors import ConfigError, DataError, StoreError
from appa.evaluation.cycling import Settings as Filter
from appa.evaluation.interpolation import Settings
from appa.evaluation.tuning import periods, untouched

HOUR = np.timedelta64(1, "h")


def hours(first: str, count: int) -> np.ndarray:
    return np.datetime64(first, "h") + HOUR * np.arange(count)


def test_periods_are_of_whole_trajectories():
    r"""Two members of a year each, in stretches of which one is tuned on."""
    times = [hours(f"{y}-{m:02}-01", 48) for y in (2019, 2020) for m in (1, 7)]
    coords = {"time": np.concatenate(times).astype("datetime64[ns]")}
    truth = xr.Dataset(coords=coords)
    window = times[0][10:20].astype("datetime64[s]")
    assert periods(truth, [window]) == (("2019-01-01T10", "2019-01-01T19"),)
    members = truth.assign_coords(trajectory=("time", np.repeat([3, 5], 96)))
    tuned = periods(members, [window, times[0][:3]])
    assert tuned == (("2019-01-01T00", "2019-07-02T23"),)

    # another season of the same member is refused, the other member is not
    with pytest.raises(DataError, match=r"tuned on 2019-01-01T00 .* of another trajectory"):
        untouched(tuned, times[1].astype("datetime64[s]"))
    untouched(tuned, times[2])
    # what begins before and ends after it has it inside
    with pytest.raises(DataError, match="overlaps"):
        untouched(tuned, hours("2018-12-31", 24 * 365))


def test_settings_are_read_as_they_were_written(tmp_path):
    tuned = (("2019-01-01T00", "2019-07-02T23"),)
    one = Settings(modes=8, localization=None, error=2.0, tuned=tuned)
    assert Settings.load(one.save(tmp_path / "oi.json")) == one
    other = Filter(length=None, exclude=("total_precipitation", "2m_temperature"), tuned=tuned)
    assert Filter.load(other.save(tmp_path / "letkf.json")) == other
    assert replace(other, every=2).tuned == tuned
    with pytest.raises(ConfigError, match="unknown 'modes'"):
        Filter.load(tmp_path / "oi.json")
    for text, told in (
        ('{"every": 1.5}', "every is 1.5"),
        ('{"exclude": "total_precipitation"}', "exclude is"),
        ('{"tuned": [["today"]]}', "holds no settings"),
        ("[1]", "holds no settings"),
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ConfigError, match=told):
            Filter.load(tmp_path / "bad.json")
    with pytest.raises(StoreError, match="--tune TRUTH"):
        Filter.load(tmp_path / "none.json")
