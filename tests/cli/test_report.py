r"""`appa report`, as a user runs it on the bundled planet, and its page as a reader opens it."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
import xarray as xr
from typer.testing import CliRunner

import appa
from appa.cli import report
from appa.errors import DataError, StoreError
from appa.evaluation.comparison import compare
from appa.evaluation.ensembles import averages

HOURS, LEVELS = 6, [500, 850]
WINDS = ["u_component_of_wind", "v_component_of_wind"]
NAMES = ["2m_temperature", "geopotential", "temperature", *WINDS]
NASTY = "<script>alert('x')</script> & \"co\""
SECTIONS = [
    "In short",
    "What it is",
    "Scores",
    "Differences to baselines",
    "Scores by hour",
    "Gallery",
    "Maps",
    "Signed errors",
    "Calibration",
    "Spread by wavelength",
    "Spectra",
    "Physics",
    "Changes in time",
    "Scores of whole fields",
    "Observations",
]


def drawn(truth: xr.Dataset, size: float, seed: int, members: int = 4) -> xr.Dataset:
    r"""The truth with noise, smooth in time, of a share of each variable's deviation."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, y in truth.items():
        noise = rng.normal(size=(members, *y.shape)) + 2 * rng.normal(
            size=(members, 1, *y.shape[1:])
        )
        found[name] = y + (size * float(y.std()) * xr.DataArray(noise, dims=("member", *y.dims)))
    return xr.Dataset(found).astype("float32").assign_coords(member=range(members))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    truth = appa.open_store("planet").isel(time=slice(HOURS))[NAMES].sel(level=LEVELS).load()
    attrs = {"task": "reanalysis", "model": NASTY, "model_digest": "0" * 16, "joints": "[3]"}
    attrs |= {"configuration": "window: 24  # <b>", "observations_digest": "fedc", "seed": 1}
    drawn(truth, 0.02, 0).assign_attrs(attrs).to_netcdf(folder / "run.nc")
    drawn(truth, 0.05, 1).to_netcdf(folder / "other.nc")
    rows = []
    for time in truth["time"].values:
        for i in (10, 30):
            y = truth["temperature"].sel(time=time, level=500)
            place = float(y["latitude"][i]), float(y["longitude"][i])
            rows.append((time, *place, "temperature", 500, float(y[i, i]) + 0.1, 0.5))
    columns = ["time", "latitude", "longitude", "variable", "level", "value", "error"]
    pd.DataFrame(rows, columns=columns).to_csv(folder / "obs.csv", index=False)
    return folder


def run(folder: Path, *args: str) -> str:
    app = typer.Typer()
    report.register(app)
    result = CliRunner().invoke(app, [a.format(folder) for a in args])
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture(scope="module")
def page(folder) -> Path:
    out = folder / "pages" / "report.html"
    output = run(
        folder,
        *("{}/run.nc", "--truth", "planet", "--out", str(out), "--workers", "1"),
        *("--baseline", f"{NASTY}={{}}/other.nc", "--variables", "t2m,t500,z500"),
        *("--observations", "{}/obs.csv", "--held-out", "{}/obs.csv", "--regions", "global,land"),
    )
    assert f"{out} is written" in output.replace("\n", "")
    assert [item.name for item in out.parent.iterdir()] == ["report.html"]
    return out


class Reader(HTMLParser):
    r"""What a page has: headings, images, addresses, tables as lists of rows by caption."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.headings: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.addresses: list[str] = []
        self.anchors: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.caption = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        found = dict(attrs)
        places = ("src", "href", "srcset", "action", "data")
        self.addresses += [str(v) for k, v in attrs if k in places]
        self.anchors += [str(v) for k, v in attrs if k == "id"]
        assert not any(k.startswith("on") for k in found)
        if tag == "img":
            self.images.append(found)
        elif tag == "caption":
            self.caption = ""
        elif tag == "tr":
            self.tables.setdefault(self.caption, []).append([])
        elif tag in ("td", "th"):
            self.tables[self.caption][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open:
            return
        if self.open[-1] == "h2":
            self.headings.append(data)
        elif self.open[-1] == "caption":
            self.caption += data
        elif self.open[-1] in ("td", "th"):
            self.tables[self.caption][-1][-1] += data


@pytest.fixture(scope="module")
def read(page) -> Reader:
    return Reader(page.read_text("utf-8"))


def cells(rows: list[list[str]], channel: str) -> list[float]:
    row = next(row for row in rows if row[0] == channel)
    return [float(c.replace("−", "-")) for c in row if re.fullmatch(r"[+−]?[\d.]+(e[+−]?\d+)?", c)]


def test_page(page, read):
    r"""All sections, nothing from elsewhere, images that are images, nothing given as markup."""
    from PIL import Image

    assert read.headings == SECTIONS
    assert page.stat().st_size < 5e6
    links = [a for a in read.addresses if a.startswith("#")]
    assert [a[1:] for a in links] == read.anchors
    rest = [a for a in read.addresses if not a.startswith("#")]
    assert all(a.startswith("data:") for a in rest)
    text = page.read_text("utf-8")
    assert not re.search(r"@import|url\(", text)
    assert "script" not in read.tags
    assert "b" not in read.tags
    assert len(read.images) >= 10
    for image in read.images:
        assert len(image["alt"] or "") > 10
        head, data = (image["src"] or "").split(",", 1)
        assert head == "data:image/png;base64"
        with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as found:
            found.load()
            assert [str(n) for n in found.size] == [image["width"], image["height"]]
    told = " ".join(str(image["alt"]) for image in read.images)
    seen = "truth, observations, members, mean and spread, at 3 hours"
    for words in (f"Gallery of t2m: {seen}", f"Gallery of z500: {seen}"):
        assert words in told
    assert "Distributions of signed errors of t2m, z500" in told
    assert "Densities of ΔH and of the wind's angle at 500 hPa and 850 hPa" in told
    # a line on how to read it for each figure
    assert read.tags.count("figcaption") == read.tags.count("figure")
    about = {row[0]: row[1] for row in read.tables["The run, and what it is compared with"]}
    assert about["model"] == NASTY
    assert about["digest of its observations"] == "fedc"
    assert about["hours"] == "6 hours, 2021-03-21T00 to 2021-03-21T05 UTC"
    assert "window: 24  # &lt;b&gt;" in text


def test_tables(folder, read):
    r"""The numbers are those of the functions that compute them, in the units shown."""
    truth = appa.open_store("planet")
    estimates = [xr.open_dataset(folder / f"{name}.nc") for name in ("run", "other")]
    scores = [appa.evaluate(e, truth, by="all", regions=["land"]).isel(region=0) for e in estimates]
    rows = read.tables["Scores, land (by the share of land)"]
    assert [row[0] for row in rows] == ["channel", "t2m", "t500", "z500"]
    for channel, scale in (("t2m", 1.0), ("z500", 0.1 / 9.80665)):
        at, other = (s.sel(channel=channel) for s in scores)
        expected = [float(at["skill"]) * scale, float(at["spread"]) * scale, float(at["ratio"])]
        expected += [float(at["crps"]) * scale]
        expected += [float(other[k]) * scale for k in ("skill", "crps")]
        assert cells(rows, channel)[:6] == pytest.approx(expected, rel=6e-3)
        assert len(cells(rows, channel)) == 8  # and climatology
    means = [averages(e, truth, variables=["z500"]) for e in estimates]
    gap = compare(means[1], means[0]).isel(region=0, channel=0)
    caption = next(c for c in read.tables if c.startswith(f"analysis less {NASTY}, global"))
    found = cells(read.tables[caption], "z500")
    expected = [float(gap[f"skill_{k}"]) * 0.1 / 9.80665 for k in ("b", "a", "difference")]
    assert found[:3] == pytest.approx(expected, rel=6e-3)
    ((_, row),) = [(c, r[1]) for c, r in read.tables.items() if c.startswith("Innovations")]
    assert row[:3] == ["temperature", "500 hPa", str(2 * HOURS)]
    assert any(c.startswith("At observations that were held out") for c in read.tables)


def test_errors(folder, tmp_path):
    with pytest.raises(DataError, match="give a name and a path"):
        run(folder, "{}/run.nc", "--truth", "planet", "--baseline", "oi.zarr", "--out", "x.html")
    with pytest.raises(StoreError, match="name a file"):
        run(folder, "{}/run.nc", "--truth", "planet", "--out", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- in a browser


def chromium() -> str | None:
    r"""A Chromium on the path, or of Playwright."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"):
        if found := shutil.which(name):
            return found
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache/ms-playwright")
    names = ("chrome", "headless_shell", "chrome-headless-shell")
    places = [p for name in names for p in sorted(cache.glob(f"chromium*/*/{name}"))]
    return str(places[-1]) if places else None


PROBE = """<script>addEventListener("load", () => {
const images = [...document.images].map(i => i.complete && i.naturalWidth > 0);
document.documentElement.dataset.images = JSON.stringify(images);});</script></body>"""


def opened(browser: str, path: Path, folder: Path) -> tuple[str, list[str]]:
    r"""The document of a page after it is loaded, and what its console says."""
    command = [browser, "--headless", "--disable-gpu", "--no-sandbox", "--no-first-run"]
    command += ["--disable-dev-shm-usage", "--enable-logging=stderr", "--v=0", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")
def test_browser(page, tmp_path):
    r"""Opened in Chromium the page has all its images and its console says nothing; a page that
    lacks one and whose script fails is found out."""
    browser = chromium()
    assert browser is not None
    document, console = opened(browser, page, tmp_path)
    assert console == []
    assert all(f">{name}</h2>" in document for name in SECTIONS)

    def images(text: str) -> list[bool]:
        # the page's own policy allows no script
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
        path = tmp_path / "probed.html"
        path.write_text(text.replace("</body>", PROBE), "utf-8")
        document, _ = opened(browser, path, tmp_path)
        return json.loads(re.search(r'data-images="([^"]*)"', document)[1])  # type: ignore[index]

    text = page.read_text("utf-8")
    found = images(text)
    assert len(found) >= 10
    assert all(found)
    broken = text.replace("base64,iVBOR", "base64,AAAA", 1)
    assert images(broken).count(False) == 1
    path = tmp_path / "failing.html"
    path.write_text("<body><script>console.error('bad')</script></body>")
    assert len(opened(browser, path, tmp_path)[1]) == 1
