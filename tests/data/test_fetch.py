r"""A fetched store holds what was asked for, and survives whatever happens on the way."""

from __future__ import annotations

import functools
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import xarray as xr

from appa.data import selection
from appa.data.checks import check
from appa.data.fetch import _on_cluster, fetch, parse_grid
from appa.data.grids import Grid
from appa.data.stores import open_store
from appa.data.variables import LEVELS, VARIABLES
from appa.data.writing import unfinished
from appa.errors import DataError, StoreError, UnfinishedStoreError

from ..processes import Process, command
from .public_layout import (
    LEVELS_37,
    canonical,
    fields,
    hours,
    land,
    write_arco,
    write_weatherbench2,
)

SHAPE = (7, 12)
TIMES = hours("2020-02-27", 96)  # over a leap day


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weatherbench2(tmp_path_factory.mktemp("source") / "wb2.zarr", TIMES, SHAPE)


def truth(times: np.ndarray, levels: Sequence[int]) -> xr.Dataset:
    return canonical(times, SHAPE, LEVELS_37).sel(level=list(levels))


def files(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def assert_holds(path: Path, expected: xr.Dataset) -> None:
    ds = xr.open_zarr(path, chunks=None)
    assert set(ds.data_vars) == set(expected.data_vars)
    for name in expected.data_vars:
        assert ds[name].dims == expected[name].dims
        assert ds[name].attrs == expected[name].attrs
        np.testing.assert_array_equal(ds[name].values, expected[name].values, err_msg=str(name))
    for name in ("time", "level", "latitude", "longitude"):
        np.testing.assert_array_equal(ds[name].values, expected[name].values)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("write", [write_weatherbench2, write_arco])
def test_copies_public_layouts(write, zarr_format: int, tmp_path: Path, capsys) -> None:
    source = write(tmp_path / "source.zarr", TIMES[:30], SHAPE, zarr_format=zarr_format)
    fetch(source, tmp_path / "out.zarr", start="2020-02-27", end="2020-02-28T03", block=12)
    assert_holds(tmp_path / "out.zarr", truth(TIMES[:28], LEVELS))
    said = capsys.readouterr().err
    # the fields and two without time in single precision, the coordinates in double
    size = ((28 * 71 + 2) * 7 * 12 * 4 + (28 + 13 + 7 + 12) * 8) / 1e3
    assert "28, 2020-02-27T00 to 2020-02-28T03, every 1 h" in said
    assert "71 (6 at the surface, 5 on 13 levels) on 7×12" in said
    assert f"on disk    {size:.2f} kB" in said
    attrs = xr.open_zarr(tmp_path / "out.zarr").attrs
    assert attrs["Conventions"].startswith("CF-")
    assert attrs["source"] == str(source)
    assert "2020-02-27T00 to 2020-02-28T03" in attrs["title"]
    assert '"levels": [50, 100,' in attrs["history"]


def test_selects(source: Path, tmp_path: Path) -> None:
    path = fetch(
        source,
        tmp_path / "out.zarr",
        start="2020-02-28T02",
        end="2020-02-29",
        surface=["2m_temperature"],
        atmospheric=["geopotential"],
        levels=[850, 100, 500],
        every=6,
        compression="zstd",
    )
    times = hours("2020-02-28T02", 8, every=6)  # the day ends at 23, so the last is 20
    names = ["2m_temperature", "geopotential", "land_sea_mask", "geopotential_at_surface"]
    assert_holds(path, truth(times, (100, 500, 850))[names])
    surface = fetch(source, tmp_path / "s.zarr", start="2020-03", end="2020-03-01", atmospheric=[])
    assert "level" not in xr.open_zarr(surface).dims
    assert xr.open_zarr(surface).sizes["time"] == 24


def cell_areas(n_lat: int, n_lon: int) -> np.ndarray:
    r"""Areas of the cells of a grid with poles, on the unit sphere, worked out anew."""
    edges = np.clip(90 - (np.arange(n_lat + 1) - 0.5) * 180 / (n_lat - 1), -90, 90)
    bands = -np.diff(np.sin(np.deg2rad(edges))) * 2 * np.pi / n_lon
    return np.repeat(bands[:, None], n_lon, axis=1)


def test_remaps_conservatively(tmp_path: Path) -> None:
    r"""The mean over the sphere stays; SST keeps to the sea; a cell may be part land."""
    source = write_weatherbench2(tmp_path / "wb2.zarr", TIMES[:3], (37, 72), (500, 850))
    path = fetch(
        source,
        tmp_path / "out.zarr",
        start="2020-02-27T00",
        end="2020-02-27T02",
        levels=[500],
        grid=parse_grid("13x24"),
    )
    fine = canonical(TIMES[:3], (37, 72), (500, 850)).sel(level=[500])
    ds = xr.open_zarr(path).load()
    np.testing.assert_allclose(ds.latitude, np.linspace(90, -90, 13))
    np.testing.assert_allclose(ds.longitude, np.arange(24) * 15.0)
    for name in ("temperature", "mean_sea_level_pressure", "land_sea_mask", "total_precipitation"):
        means = [
            (x[name].values.astype(np.float64) * cell_areas(*x[name].shape[-2:])).sum((-1, -2))
            for x in (fine, ds)
        ]
        # float32 sums of up to 37 × 72 products
        np.testing.assert_allclose(means[1], means[0], rtol=2e-6)
    mask = ds.land_sea_mask.values
    assert ((mask > 0.01) & (mask < 0.99)).any()
    np.testing.assert_array_equal(
        np.isnan(ds.sea_surface_temperature.values), np.broadcast_to(mask > 0.5 + 1e-4, (3, 13, 24))
    )


def test_the_same_grid_is_not_remapped(source: Path, tmp_path: Path, capsys) -> None:
    arguments = {"start": TIMES[0], "end": TIMES[3], "atmospheric": []}
    plain = fetch(source, tmp_path / "a.zarr", **arguments)
    same = fetch(source, tmp_path / "b.zarr", grid=Grid("equiangular", *SHAPE), **arguments)
    assert files(plain) == files(same)
    assert "remapped" not in capsys.readouterr().err


def test_land_mask_from_sst(tmp_path: Path) -> None:
    source = write_weatherbench2(tmp_path / "wb2.zarr", TIMES[:2], SHAPE, (500,), static=False)
    path = fetch(source, tmp_path / "a.zarr", start=TIMES[0], end=TIMES[1], levels=[500])
    ds = open_store(path)
    expected = land(ds.latitude.values, ds.longitude.values)
    np.testing.assert_array_equal(ds.land_sea_mask, expected)
    assert 0 < expected.mean() < 1
    path = fetch(
        source,
        tmp_path / "b.zarr",
        start=TIMES[0],
        end=TIMES[1],
        levels=[500],
        surface=["2m_temperature"],
    )
    assert "land_sea_mask" not in open_store(path)


def test_trajectories_travel(tmp_path: Path) -> None:
    ds = canonical(TIMES[:6], SHAPE, (500,)).assign_coords(trajectory=("time", [4, 4, 4, 7, 7, 7]))
    ds.to_zarr(tmp_path / "source.zarr", consolidated=False)
    some = {"start": TIMES[1], "end": TIMES[4], "levels": [500]}
    path = fetch(tmp_path / "source.zarr", tmp_path / "a.zarr", **some)
    assert list(open_store(path).trajectory.values) == [4, 4, 7, 7]


def test_what_the_source_lacks_is_named_before_anything_is_copied(source: Path, tmp_path) -> None:
    def refused(message: str, error: type[Exception] = DataError, source=source, **kwargs) -> None:
        kwargs = {"start": "2020-02-27", "end": "2020-02-28", **kwargs}
        with pytest.raises(error, match=message):
            fetch(source, tmp_path / "out.zarr", **kwargs)
        assert os.listdir(tmp_path) == before

    thin = canonical(TIMES[:5], SHAPE, (500, 850)).drop_vars(["temperature"])
    thin.isel(time=[0, 1, 3, 4]).to_zarr(tmp_path / "thin.zarr", consolidated=False)
    twice = thin.isel(time=[0, 1, 1, 2]).rename(specific_humidity="temperature")
    twice.to_zarr(tmp_path / "twice.zarr", consolidated=False)
    write_arco(tmp_path / "arco.zarr", TIMES[:48], SHAPE, (500,), padding=30)
    thin.rename(geopotential="z").to_zarr(tmp_path / "cds.zarr", consolidated=False)
    before = os.listdir(tmp_path)

    refused("unknown variable '2m_temperatur'; did you mean", surface=["2m_temperatur"])
    refused("'temperature' has levels", surface=["temperature"])
    refused(
        r"has no temperature.*\(it has 2m_temperature, .*geopotential",
        source=tmp_path / "thin.zarr",
        levels=[500],
    )
    refused("no level 501 hPa; the nearest is 500", levels=[501, 850])
    refused(
        "lacks 24 of the 120 hours .* first is 2020-03-02T00; it holds .* 2020-03-01T23",
        end="2020-03-02",
    )
    refused(
        "lacks 1 of the 5 hours .* first is 2020-02-27T02",
        source=tmp_path / "thin.zarr",
        atmospheric=[],
        end="2020-02-27T04",
    )
    refused(
        "holds 2020-02-27T01 more than once",
        source=tmp_path / "twice.zarr",
        atmospheric=[],
        end="2020-02-27T02",
    )
    refused(
        "lacks 24 of the 72 hours.*first is 2020-02-29T00; it holds 2020-02-27T00 to 2020-02-28T23",
        source=tmp_path / "arco.zarr",
        levels=[500],
        end="2020-02-29",
    )
    refused("the end 2020-02-26 is before the start", end="2020-02-26")
    refused("end 'tomorrow' is no date", end="tomorrow")
    refused("every 0 hours", every=0)
    refused("no level is asked for, and temperature has levels", levels=[])
    refused("no variable is asked for: name at least one", surface=[], atmospheric=[])
    refused("lacks .* the first is 2020-02-27T00:30; it holds", start="2020-02-27T00:30")
    refused(
        "has no geopotential; its 'z' may be that: rename it",
        source=tmp_path / "cds.zarr",
        atmospheric=["geopotential"],
        levels=[500],
    )
    refused("did you mean 'arco'", StoreError, source="arca")
    refused("did you mean 'thin.zarr'", StoreError, source=tmp_path / "thinn.zarr")


def test_no_room(tmp_path: Path) -> None:
    source = write_weatherbench2(tmp_path / "wb2.zarr", TIMES, SHAPE, (500,), static=False)
    with pytest.raises(StoreError, match=r"still needs .* GB, and .* GB free"):
        fetch(
            source,
            tmp_path / "out.zarr",
            start=TIMES[0],
            end=TIMES[-1],
            levels=[500],
            surface=["2m_temperature"],
            grid=Grid("equiangular", 100_001, 200_000),  # 46 TB
        )
    assert os.listdir(tmp_path) == ["wb2.zarr"]


def test_empty_hours_are_reported(tmp_path: Path, capsys) -> None:
    source = write_weatherbench2(tmp_path / "wb2.zarr", TIMES[:4], SHAPE, (500,), zarr_format=2)
    (source / "temperature" / "2.0.0.0").unlink()
    path = fetch(source, tmp_path / "a.zarr", start=TIMES[0], end=TIMES[3], levels=[500])
    said = capsys.readouterr().err
    assert "warning: temperature has NaN in 1 hour, 2020-02-27T02, at up to 84 of 84" in said
    assert said.count("warning") == 1
    assert np.isnan(open_store(path).temperature.isel(time=2)).all()


@pytest.mark.parametrize("grid", [None, "9x16"])
def test_undefined_values_stay(grid: str | None, tmp_path: Path, capsys) -> None:
    r"""NaN where there may be none is not averaged away: told, and found by a check."""
    ds = canonical(TIMES[:4], (37, 72), (500, 850))
    ds["temperature"].values[1:3, 1, 10, 7] = np.nan
    ds["mean_sea_level_pressure"].values[3, 0, 30] = np.nan  # at a pole: hardly any area
    ds.to_zarr(tmp_path / "source.zarr", consolidated=False)
    arguments = {"start": TIMES[0], "end": TIMES[3], "levels": [850, 500], "block": 2}
    if grid is not None:
        arguments["grid"] = parse_grid(grid)
    path = fetch(tmp_path / "source.zarr", tmp_path / "a.zarr", **arguments)
    said = capsys.readouterr().err
    assert "temperature has NaN in 2 hours from 2020-02-27T01 to 2020-02-27T02, at up to 1" in said
    assert "mean_sea_level_pressure has NaN in 1 hour, 2020-02-27T03, at up to 1" in said
    assert said.count("warning") == 2  # SST is undefined over land, and may be

    copy = open_store(path)
    undefined = np.isnan(copy["temperature"].values)
    assert undefined.any((-2, -1)).tolist() == [
        [False] * 2,
        [False, True],
        [False, True],
        [False] * 2,
    ]
    lat, lon = copy["latitude"].values, copy["longitude"].values
    for t, j, i in np.argwhere(undefined[:, 1]):
        # cells half a side from the point, in each direction, on either grid
        assert t in (1, 2)
        assert abs(lat[j] - (90 - 10 * 5)) < 180 / (len(lat) - 1) / 2 + 2.5
        assert abs(lon[i] - 7 * 5) < 360 / len(lon) / 2 + 2.5
    assert np.isnan(copy["mean_sea_level_pressure"].values[3, 0]).any()
    found = {(f.kind, f.variable, f.hours) for f in check(copy) if f.kind == "undefined"}
    assert {("undefined", "temperature", 2), ("undefined", "mean_sea_level_pressure", 1)} <= found


def test_undefined_values_are_told_after_a_restart(tmp_path: Path, monkeypatch, capsys) -> None:
    ds = canonical(TIMES[:6], SHAPE, (500,))
    ds["temperature"].values[1, 0, 3, 3] = np.nan
    encoding = {name: {"chunks": (1, *ds[name].shape[1:])} for name in VARIABLES}
    ds.to_zarr(tmp_path / "source.zarr", zarr_format=2, encoding=encoding)
    chunk = tmp_path / "source.zarr" / "temperature" / "5.0.0.0"
    whole = chunk.read_bytes()
    chunk.write_bytes(b"damaged")
    arguments = {"start": TIMES[0], "end": TIMES[5], "levels": [500], "block": 2, "workers": 1}
    slept: list[float] = []
    monkeypatch.setattr(selection.time, "sleep", slept.append)
    with pytest.raises(StoreError, match="copy or write the source again and rerun"):
        fetch(tmp_path / "source.zarr", tmp_path / "a.zarr", **arguments)
    assert not slept  # a file does not mend by waiting
    assert "warning" not in capsys.readouterr().err
    chunk.write_bytes(whole)
    fetch(tmp_path / "source.zarr", tmp_path / "a.zarr", **arguments)
    said = capsys.readouterr().err
    assert "parts are there already" in said
    assert "warning: temperature has NaN in 1 hour, 2020-02-27T01, at up to 1 of 84" in said


class Flaky(SimpleHTTPRequestHandler):
    r"""Fails the first `fail` requests for every chunk of the sea-level pressure."""

    fail = 2
    asked: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        if re.search(r"/mean_sea_level_pressure/\d", self.path):
            self.asked[self.path] += 1
            if self.asked[self.path] <= self.fail:
                self.send_error(503)
                return
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(source: Path) -> Iterator[str]:
    handler = functools.partial(Flaky, directory=str(source.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        Flaky.asked.clear()
        yield f"http://127.0.0.1:{server.server_port}/{source.name}"
        server.shutdown()


def test_over_http_with_hiccups(server: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(selection, "PAUSE", 0.01)
    names = ["2m_temperature", "mean_sea_level_pressure"]
    arguments = {"start": TIMES[0], "end": TIMES[11], "surface": names, "levels": [500], "block": 4}

    monkeypatch.setattr(Flaky, "fail", 2)
    path = fetch(server, tmp_path / "a.zarr", workers=2, **arguments)
    assert min(Flaky.asked.values()) == 3
    static = ["land_sea_mask", "geopotential_at_surface"]
    atmospheric = [name for name in VARIABLES if not VARIABLES[name].surface]
    assert_holds(path, truth(TIMES[:12], (500,))[names + atmospheric + static])

    Flaky.asked.clear()
    monkeypatch.setattr(Flaky, "fail", 1000)
    with pytest.raises(
        StoreError, match=r"mean_sea_level_pressure at .* after 5 tries .*503.*rerun"
    ):
        fetch(server, tmp_path / "b.zarr", workers=1, **arguments)
    assert set(Flaky.asked.values()) == {5}
    with pytest.raises(UnfinishedStoreError, match=r"0 of 3 blocks"):
        open_store(tmp_path / "b.zarr")
    monkeypatch.setattr(Flaky, "fail", 0)
    fetch(server, tmp_path / "b.zarr", **arguments)
    assert files(tmp_path / "b.zarr") == files(path)


def test_another_selection_does_not_continue(source: Path, tmp_path: Path, monkeypatch) -> None:
    damaged = tmp_path / "wb2.zarr"
    write_weatherbench2(damaged, TIMES[:8], SHAPE, (500,))
    (damaged / "temperature" / "5.0.0.0").write_bytes(b"damaged")
    monkeypatch.setattr(selection, "PAUSE", 0.01)
    arguments = {"start": "2020-02-27T00", "end": "2020-02-27T07", "levels": [500], "block": 2}
    with pytest.raises(StoreError, match="temperature at 2020-02-27T05 cannot be read"):
        fetch(damaged, tmp_path / "a.zarr", **arguments)
    with pytest.raises(StoreError, match=r"another plan: source was .*wb2\.zarr"):
        fetch(source, tmp_path / "a.zarr", **arguments)
    with pytest.raises(StoreError, match=r"another plan: end was '2020-02-27T07', is .*T06"):
        fetch(damaged, tmp_path / "a.zarr", **{**arguments, "end": "2020-02-27T06"})


@pytest.mark.slow
def test_killed_and_run_again(source: Path, tmp_path: Path) -> None:
    r"""SIGKILL in the middle: nothing finished is redone, and the store is the same in the end."""
    path, partial = tmp_path / "a.zarr", tmp_path / "a.zarr.partial"
    words = ["data", "fetch", str(source), str(path)]
    words += ["--start", "2020-02-27", "--end", "2020-03-01", "--block", "4"]  # 24 × 11 parts
    with Process(command, *words) as job:
        job.until(lambda: (unfinished(path) or (0, 0))[0] >= 3)
        job.send_signal(signal.SIGKILL)
        assert job.wait() == -signal.SIGKILL

    for reader in (open_store, xr.open_zarr):
        for name in (path, partial):
            with pytest.raises((UnfinishedStoreError, FileNotFoundError)):
                reader(name)
    with pytest.raises(UnfinishedStoreError, match=r"of 24 blocks"):
        open_store(path)

    def shards(root: Path) -> dict[tuple[str, str], tuple[int, int]]:
        found = {}
        for name in VARIABLES:
            for shard in (root / name / "c").iterdir():
                for file in shard.rglob("0"):
                    if file.is_file():
                        stat = file.stat()
                        found[name, shard.name] = (stat.st_ino, stat.st_mtime_ns)
        return found

    # As if killed a moment earlier: one variable of a block is missing, the others stay.
    (partial / ".appa" / "done" / "temperature" / "1").unlink()
    marked = {
        (name, marker)
        for name in VARIABLES
        for marker in os.listdir(partial / ".appa" / "done" / name)
        if marker.isdigit()
    }
    assert 32 <= len(marked) < 24 * 11
    before = {key: value for key, value in shards(partial).items() if key in marked}
    assert len(before) == len(marked)  # a marker means data

    with Process(command, *words) as job:
        assert job.wait() == 0, job.said
        assert f"{len(marked)} of 264 parts are there already" in job.said
    after = shards(path)
    assert sum(after[key] != value for key, value in before.items()) == 0
    fetch(source, tmp_path / "b.zarr", start="2020-02-27", end="2020-03-01", block=4)
    assert files(path) == files(tmp_path / "b.zarr")
    assert_holds(path, truth(TIMES, LEVELS))


@pytest.mark.slow
def test_on_a_cluster(source: Path, tmp_path: Path, monkeypatch) -> None:
    from distributed import LocalCluster

    arguments = {"start": TIMES[0], "end": TIMES[40], "block": 12}
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        monkeypatch.chdir(source.parent)  # workers run in another folder
        path = fetch(source.name, tmp_path / "a.zarr", scheduler=address, **arguments)
        assert len(cluster.workers) == 2
        parts = [(i, "temperature") for i in range(9)]
        done: list[int] = []
        assert sum(_on_cluster(lambda part: part[0], parts, address, lambda: done.append(1))) == 36
        assert len(done) == 9

        def fail(part: tuple[int, str]) -> int:
            if part[0] == 5:
                raise StoreError("no room left")
            return 1 // (part[0] - 3)

        with pytest.raises(StoreError, match="no room left"):
            _on_cluster(fail, parts[4:], address, lambda: None)
        with pytest.raises(StoreError, match=r"a part failed on the cluster \(ZeroDivisionError"):
            _on_cluster(fail, parts[:5], address, lambda: None)
    assert_holds(path, truth(TIMES[:41], LEVELS))
    monkeypatch.setattr("appa.data.reduction.TIMEOUT", 0.5)
    with pytest.raises(StoreError, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:1"):
        fetch(source, tmp_path / "b.zarr", scheduler="tcp://127.0.0.1:1", **arguments)


def test_fields_are_what_they_were(source: Path, tmp_path: Path) -> None:
    r"""Against the functions of time and place the source was made of, at places picked by name."""
    path = fetch(source, tmp_path / "a.zarr", start="2020-02-29", end="2020-02-29", levels=[300])
    ds = xr.open_zarr(path).sel(latitude=[30.0], longitude=[270.0], time=["2020-02-29T07"])
    time = np.array(["2020-02-29T07"], "datetime64[ns]")
    expected = fields(time, np.array([30.0]), np.array([270.0]), (300,))
    for name in ("u_component_of_wind", "temperature", "10m_v_component_of_wind"):
        np.testing.assert_allclose(ds[name].values, expected[name], rtol=1e-5)


def test_parse_grid() -> None:
    assert parse_grid("121x240") == Grid("equiangular", 121, 240)
    assert parse_grid("gaussian:48×96") == Grid("gaussian", 48, 96)
    for text in ("121", "ax240", "121x", ""):
        with pytest.raises(DataError, match="for example 121x240"):
            parse_grid(text)
    with pytest.raises(DataError, match="did you mean 'gaussian'"):
        parse_grid("gausian:48x96")
