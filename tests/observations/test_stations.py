from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest

from appa.data.grids import Grid
from appa.errors import DataError
from appa.observations.stations import (
    boxes,
    places,
    read_stations,
    reporting,
    share_of,
    stations,
)

GRID = Grid("gaussian", 48, 96)

HEADER = '"USAF","WBAN","STATION NAME","CTRY","STATE","ICAO","LAT","LON","ELEV(M)","BEGIN","END"'
# In the form of NOAA's list, quirks included; the places are made up.
ROWS = [
    '"010010","99999","NORTH","NO","","ENJA","+70.933","-008.667","+0009.0","19310101","20230417"',
    '"007018","99999","WXPOD 7018","","","","+00.000","+000.000","+7018.0","20110309","20230417"',
    '"A00001","12345","LETTERS","US","KS","","+39.100","-094.600","+0229.0","20200101","20230417"',
    '"082190","99999","NO HEIGHT","SP","","","+41.000","-001.500","-0999.0","19730101","20230417"',
    '"082191","99999","NOR HERE","SP","","","+42.000","-001.500","-0999.9","19730101","20230417"',
    '"082192","99999","BLANK HEIGHT","SP","","","+43.000","-001.500","","19730101","20230417"',
    "",
    '"008411","99999","XM20","","","","","","","20160217","20230417"',
    '"008412","99999","HALF","","","","+12.000"," ","","20160217","20230417"',
    '"030000","99999","ENDED","UK","","","+55.000","-003.000","+0100.0","19730101","19991231"',
    '"030001","99999","NOT YET","UK","","","+56.000","-003.000","+0100.0","20210322","20230417"',
    '"030002","99999","BEYOND","UK","","","+95.000","-003.000","+0100.0","19730101","20230417"',
    '"030003","99999","A, TWIN","UK","","","+39.102","-094.601","+0230.0","20201231","20230417"',
    '"030004","99999","NO DATES","UK","","","+57.000","-003.000","+0100.0","","20230417"',
    '"004000","99999","DEAD SEA","JO","","","+31.500","+035.500","-0400.0","19730101","20210321"',
]  # fmt: skip


@pytest.fixture
def history(tmp_path):
    path = tmp_path / "isd-history.csv"
    path.write_text("\n".join([HEADER, *ROWS]) + "\n")
    return path


def counts(report: pd.DataFrame) -> dict[str, int]:
    return dict(zip(report["reason"], report["count"], strict=True))


def test_a_day_of_noaas_list(history):
    listed, report = read_stations(history, ("2021-03-21T00", "2021-03-21T23"))
    assert list(listed["station"]) == [
        "004000-99999",  # whose last day it is
        "010010-99999",
        "082190-99999",
        "082191-99999",
        "082192-99999",
        "A00001-12345",
    ]
    assert counts(report) == {
        "blank line": 1,
        "no coordinates": 2,
        "coordinates 0, 0": 1,
        "impossible coordinates": 1,
        "no dates": 1,
        "did not report throughout 2021-03-21": 2,
        "place of another": 1,
        "no elevation (kept)": 3,
    }
    left_out = sum(n for reason, n in counts(report).items() if "kept" not in reason)
    assert len(listed) + left_out == len(ROWS)
    # Lines of the file, of which the header is the first.
    examples = dict(zip(report["reason"], report["example"], strict=True))
    assert examples["coordinates 0, 0"] == "007018-99999 in line 3"
    assert examples["place of another"] == "030003-99999 in line 14"

    row = listed.set_index("station").loc["010010-99999"]
    assert (row["latitude"], row["longitude"], row["elevation"]) == (70.933, -8.667, 9.0)
    assert listed.set_index("station").loc["004000-99999", "elevation"] == -400
    assert listed["elevation"].isna().sum() == 3


def test_a_station_reports_throughout(history):
    both, _ = read_stations(history, ("2021-03-21", "2021-03-22"))
    assert "004000-99999" not in set(both["station"])  # ended on the first
    assert "030001-99999" not in set(both["station"])  # began on the second
    later, _ = read_stations(history, ("2021-03-22", "2021-03-22"))
    assert "030001-99999" in set(later["station"])


def test_stations_of_any_time(history):
    listed, report = read_stations(history)
    assert {"030000-99999", "030001-99999", "004000-99999"} <= set(listed["station"])
    assert not any("report" in reason for reason in report["reason"])


def test_nothing_left(history):
    with pytest.raises(DataError, match="no station is left of the 15 rows") as error:
        read_stations(history, ("2026-01-01", "2026-01-01"))
    assert "its last report is of 2023-04-17" in str(error.value)
    assert " 9  did not report throughout 2026-01-01" in str(error.value)


def test_other_files(tmp_path):
    path = tmp_path / "stations.csv"
    path.write_text("code,lat,lon\nA,1,2\n")
    with pytest.raises(DataError, match=r"lacks the columns USAF.*has CODE, LAT, LON"):
        read_stations(path)
    path.write_text("")
    with pytest.raises(DataError, match="cannot be read as a list of stations"):
        read_stations(path)
    with pytest.raises(DataError, match=r"cannot be read.*No such file"):
        read_stations(tmp_path / "nowhere.csv")


def test_choice_from_a_list(history):
    listed, _ = read_stations(history, ("2021-03-21", "2021-03-21"))
    chosen = stations(GRID, 3, listed=listed)
    assert set(chosen["station"]) <= set(listed["station"])
    assert list(chosen.columns) == ["station", "latitude", "longitude", "elevation"]
    # The three in Spain are 1° apart in longitude's rows of 3.7°: some share a box.
    occupied = len(set(boxes(GRID, listed["latitude"], listed["longitude"])))
    with pytest.raises(DataError, match=f"the 6 stations of the list fill only {occupied} boxes"):
        stations(GRID, occupied + 1, listed=listed)
    assert list(reporting(listed)["station"]) == list(listed["station"])
    with pytest.raises(DataError, match="lacks elevation"):
        stations(GRID, 1, listed=listed.drop(columns="elevation"))


def test_packaged_places_that_report():
    listed = reporting()
    assert 7500 < len(listed) < 8500
    assert set(listed["station"]) <= set(places().loc[places()["major"], "station"])
    # No two within half a hundredth of a degree of each other in both coordinates.
    near = listed[["latitude", "longitude"]].mul(100).round()
    assert not near.duplicated().any()
    share = len(set(boxes(GRID, listed["latitude"], listed["longitude"]))) / 4608
    assert 0.25 < share < 0.34


def test_shares_are_uniform():
    drawn = [share_of("hold-out", 0, f"S{k}") for k in range(5000)]
    assert kstest(drawn, "uniform").pvalue > 1e-4
    assert share_of(1, "a") != share_of(2, "a")
    assert np.all((np.array(drawn) >= 0) & (np.array(drawn) < 1))
