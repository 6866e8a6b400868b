r"""The presets against the paper, and every kind of mistake against the message it gets."""

from __future__ import annotations

import copy
from datetime import date

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml

from appa import costs
from appa.config import load_config, parse_config, presets
from appa.data.fetch import SOURCES
from appa.data.grids import Grid
from appa.errors import ConfigError
from appa.sections import Sampling
from appa.tasks.settings import Settings

PAPER = load_config("era5-0.25deg")


@pytest.fixture
def values():
    r"""The paper's configuration as nested mappings, to plant mistakes in."""
    return yaml.safe_load(PAPER.to_yaml())


def problems(values):
    with pytest.raises(ConfigError) as caught:
        parse_config(values)
    head, *lines = str(caught.value).splitlines()
    assert head == "the configuration is not a valid configuration:"
    return [line.removeprefix("  ") for line in lines]


def test_presets():
    assert {"planet", "era5-1.5deg", "era5-0.25deg"} <= set(presets())


# The paper


def test_paper_data():
    # section 2 and appendix A.1
    assert len(PAPER.data.surface) == 6
    assert len(PAPER.data.atmospheric) == 5
    assert len(PAPER.data.levels) == 13
    assert len(PAPER.channels) == 71
    names = [channel.name for channel in PAPER.channels]
    assert names[:8] == ["t2m", "u10", "v10", "msl", "sst", "tp", "t50", "t100"]
    assert names[18:20] == ["t1000", "u50"]
    assert names[-1] == "q1000"
    assert PAPER.grid == Grid("equiangular", 721, 1440)
    assert PAPER.grid.latitude[1] == 89.75
    splits = PAPER.data.splits
    assert splits.train == (date(1993, 1, 1), date(2019, 12, 31))
    assert splits.validation == (date(2020, 1, 1), date(2020, 12, 31))
    assert splits.test == (date(2021, 1, 1), date(2021, 12, 31))


def test_paper_networks():
    # appendix B.1: 23×47 pixels with 128 channels, 12,972 tokens of 256 channels
    assert PAPER.state_shape == (71, 721, 1440)
    assert PAPER.latent_shape == (128, 23, 47)
    assert PAPER.autoencoder.factor == 32
    assert PAPER.padding == (7, 8, 32, 32)
    assert int(PAPER.compression) == 532
    assert PAPER.window == 24
    assert PAPER.tokens == 12_972
    assert PAPER.denoiser.patch * PAPER.autoencoder.latent_channels == 256
    # what the published weights count, and what a profiler counted running them
    assert round(costs.autoencoder_parameters(PAPER) / 1e6) == 314
    assert round(costs.denoiser_parameters(PAPER) / 1e6) == 223
    assert costs.decoder_flops(PAPER) == pytest.approx(3.12e12, rel=5e-3)
    assert costs.denoiser_flops(PAPER) == pytest.approx(16.35e12, rel=5e-3)


@pytest.mark.parametrize("name", ["era5-1.5deg", "era5-0.25deg"])
def test_source_is_one_that_fetch_knows(name):
    assert load_config(name).data.source == "arco"
    assert "arco" in SOURCES


def test_paper_training_and_sampling():
    ae, denoiser = PAPER.training.autoencoder, PAPER.training.denoiser
    assert PAPER.autoencoder.latent_noise == 0.01
    assert (ae.optimizer, ae.learning_rate, ae.decay) == ("soap", 3e-5, "linear")
    assert (ae.batch_size, ae.steps, ae.level_weights) == (64, 95_000, True)
    assert (denoiser.optimizer, denoiser.learning_rate) == ("adam", 1e-4)
    assert (denoiser.batch_size, denoiser.steps) == (256, 125_000)
    assert (PAPER.schedule.kind, PAPER.schedule.sigma_min, PAPER.schedule.sigma_max) == (
        "rectified",
        0.001,
        1000,
    )
    # what the authors' published runs used, by name; without, a model is drawn as others are
    assert PAPER.sampling == Sampling()
    sampling = Settings.of(PAPER, "paper")
    assert (sampling.sampler, sampling.steps) == ("predictor-corrector", 32)
    assert (sampling.corrections, sampling.correction_size) == (2, 0.1)
    assert (sampling.mode, sampling.stride, sampling.past, sampling.new) == ("composed", 12, 12, 12)
    assert (sampling.representation, sampling.residual, sampling.tolerance) == ("none", False, 0)
    assert (sampling.guidance, sampling.solver, sampling.iterations) == ("mmps", "gmres", 2)
    assert PAPER.observations.station_error == 0.01
    assert PAPER.observations.satellite_error == 0.1


def test_published_example(values):
    # The authors' example of their format: 11 channels on 37×72, with these numbers of weights
    # and biases in its files.
    values["data"]["levels"] = [500]
    values["data"]["grid"] = {"latitudes": 37, "longitudes": 72}
    values["window"] = 6
    values["autoencoder"] = {
        "latent_channels": 6,
        "hidden_channels": [8, 12, 16, 24],
        "blocks": [1, 2, 1, 1],
        "longitude": "halo",
    }
    values["denoiser"] = {"width": 32, "blocks": 2, "heads": 4, "modulation": 16}
    values["sampling"] = {"stride": 2, "past": 2}
    config = parse_config(values)
    assert config.latent_shape == (6, 5, 11)
    assert costs.autoencoder_parameters(config) == 95_717
    assert costs.denoiser_parameters(config) == 35_404


# The other presets


def test_planet():
    config = load_config("planet")
    assert config.grid == Grid("gaussian", 48, 96)
    assert len(config.channels) == 71
    assert config.autoencoder.longitude == "circular"
    assert config.padding == (0, 0, 0, 0)
    assert config.compression >= 60
    assert costs.decoder_flops(config) <= 1.5e9
    weights = costs.autoencoder_parameters(config) + costs.denoiser_parameters(config)
    assert 2 * weights <= 24e6  # bytes in half precision
    assert not config.training.autoencoder.level_weights
    assert config.data.splits.train[1].year < 2020


def test_era5_for_one_gpu():
    config = load_config("era5-1.5deg")
    assert config.grid == Grid("equiangular", 121, 240)
    assert config.grid.latitude[1] == 88.5
    assert config.channels == PAPER.channels
    assert config.data.splits == PAPER.data.splits
    assert config.autoencoder.longitude == "circular"
    # 121 rows take 7 more to be a multiple of 8; 240 columns take none
    assert config.latent_shape == (64, 16, 30)


@pytest.mark.parametrize("name", ["planet", "era5-1.5deg", "era5-0.25deg"])
def test_written_out_reads_back(name, tmp_path):
    config = load_config(name)
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "config.yaml") == config
    assert load_config(tmp_path) == config


def test_configurations_do_not_change():
    with pytest.raises(ValueError, match="frozen"):
        PAPER.window = 12


def test_splits_select_whole_days():
    time = pd.date_range("2019-12-30", "2021-01-02T23", freq="h")
    ds = xr.Dataset(coords={"time": time})
    found = ds.sel(time=PAPER.data.splits.period("validation")).time.values
    assert found[0] == np.datetime64("2020-01-01T00")
    assert found[-1] == np.datetime64("2020-12-31T23")
    assert len(found) == 8784


# Files


def test_extending_a_preset(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: era5-1.5deg\ndata: {levels: [500, 850]}\nwindow: 12\n")
    config, base = load_config(file), load_config("era5-1.5deg")
    assert config.window == 12
    assert config.data.levels == (500, 850)
    assert len(config.channels) == 6 + 5 * 2
    assert config.data.grid == base.data.grid
    assert config.denoiser == base.denoiser


def test_numbers_yaml_takes_for_text(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: planet\ntraining: {denoiser: {learning_rate: 1e-4}}\n")
    assert load_config(file).training.denoiser.learning_rate == 1e-4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("window: [24", "is not YAML"),
        ("window: 24\nwindow: 12\n", "found the key 'window' twice"),
        ("", "found None, expected keys such as 'data:'"),
        ("- planet\n", r"found \['planet'\], expected keys"),
        ("extends: planett\n", "extends: found 'planett'.*did you mean 'planet'"),
        ("extends: [planet]\n", r"extends: found \['planet'\], expected a preset"),
        ("extends: planet\nwindow: 25\n", "denoiser.patch: found 2, expected to divide"),
    ],
)
def test_bad_files(text, told, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=told) as caught:
        load_config(file)
    assert str(file) in str(caught.value)


def test_missing_files_and_presets(tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean 'era5-1.5deg'\?.*presets: era5-0.25deg"):
        load_config("era5-1.5")
    with pytest.raises(ConfigError, match=r"config.yaml, and no preset of that name \(presets: "):
        load_config(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path / "binary.yaml")


# Mistakes

MISTAKES = [
    (
        "autoencoder.hiden_channels",
        [64],
        "autoencoder.hiden_channels: unknown key; did you mean 'hidden_channels'?",
    ),
    ("windw", 24, "windw: unknown key; did you mean 'window'?"),
    ("denoiser.modulation", 15, "denoiser.modulation: found 15, expected an even number, e.g. 16"),
    (
        "autoencoder.hidden_channels",
        [8, 1, 8, 8],
        "autoencoder.hidden_channels: found [8, 1, 8, 8], expected 2 or more at each level",
    ),
    (
        "autoencoder.decoder_channels",
        [8, 8, 8, 1],
        "autoencoder.decoder_channels: found [8, 8, 8, 1], expected 2 or more at each level",
    ),
    ("training.denoiser.stepz", 1, "did you mean 'steps'?"),
    ("latent_channels", 3, "latent_channels: unknown key; it belongs under autoencoder"),
    ("data.grid.zzz", 3, "data.grid.zzz: unknown key; known: kind, latitudes, longitudes"),
    ("window", 24.5, "window: found 24.5, expected a valid integer"),
    ("window", True, "window: found True, expected a valid integer"),
    ("window", 0, "window: found 0, expected greater than 0"),
    (
        "autoencoder.longitude",
        "circle",
        "autoencoder.longitude: found 'circle', expected 'halo' or 'circular'; did you mean "
        "'circular'?",
    ),
    ("autoencoder.latent_noise", -0.1, "latent_noise: found -0.1, expected greater than or equal"),
    ("autoencoder.blocks", [3, 3], "autoencoder.blocks: found [3, 3], expected 6 numbers"),
    ("autoencoder.decoder_channels", [3], "decoder_channels: found [3], expected 6 numbers"),
    ("autoencoder.hidden_channels", [], "hidden_channels: found []"),
    ("data.surface", ["2m_temprature"], "data.surface[0]: unknown variable '2m_temprature'; did"),
    ("data.surface", ["temperature"], "data.surface[0]: 'temperature' has levels"),
    ("data.atmospheric", ["2m_temperature"], "data.atmospheric[0]: '2m_temperature' has no levels"),
    ("data.atmospheric", ["geopotential"] * 2, "data.atmospheric[1]: 'geopotential' is listed"),
    ("data.levels", [500, 100], "data.levels: found [500, 100], expected ascending and unique"),
    ("data.levels", [100, 100], "expected ascending and unique: [100]"),
    ("data.levels", [], "data.levels: found [], expected at least one level"),
    ("data.levels", [50, "low"], "data.levels[1]: found 'low', expected a valid integer"),
    ("data.grid.kind", "gauss", "did you mean 'gaussian'?"),
    ("data.splits.train", [1993, 2019], "data.splits.train: found 1993, expected two dates"),
    ("data.splits.train", ["1993-01-01"], "splits.train: found ['1993-01-01'], expected two"),
    ("data.splits.train", ["1993-13-01", "2019-12-31"], "train: found '1993-13-01', expected"),
    ("data.splits.test", ["2021-12-31", "2021-01-01"], "ends on 2021-01-01, before it starts"),
    ("data.splits.validation", ["2019-06-01", "2020-12-31"], "validation: starts on 2019-06-01, b"),
    ("data.splits.test", ["2020-12-31", "2021-12-31"], "but validation ends on 2020-12-31"),
    ("denoiser.heads", 7, "denoiser.heads: found 7, expected a number that divides the width 1024"),
    ("denoiser.heads", 1024, "into even parts"),
    ("denoiser.patch", 5, "denoiser.patch: found 5, expected to divide window, 24"),
    ("schedule.sigma_max", 1e-4, "schedule.sigma_max: found 0.0001, expected above"),
    ("schedule.sigma_min", float("nan"), "schedule.sigma_min: found nan, expected a finite number"),
    ("sampling.stride", 25, "sampling.stride: found 25, expected at most window, 24"),
    ("sampling.stride", 11, "sampling.stride: found 11, expected even as window, 24"),
    ("sampling.past", 24, "sampling.past: found 24, expected less than window, 24"),
    ("training.autoencoder.optimizer", "Adam", "expected 'soap' or 'adam'; did you mean 'adam'?"),
    ("training.autoencoder.learning_rate", "fast", "learning_rate: found 'fast', expected a valid"),
    ("training.denoiser.ema", 1.0, "training.denoiser.ema: found 1.0, expected less than 1"),
    ("training.denoiser.level_weights", True, "it belongs under training.autoencoder"),
    (
        "training.autoencoder.variable_weights",
        {"2m_temprature": 2},
        "did you mean '2m_temperature'",
    ),
    ("observations", 5, "observations: found 5, expected the keys station_error, satellite_error"),
]


@pytest.mark.parametrize(("path", "value", "told"), MISTAKES)
def test_mistakes_are_named(values, path, value, told):
    *sections, key = path.split(".")
    target = values
    for section in sections:
        target = target[section]
    target[key] = value
    lines = problems(values)
    assert len(lines) == 1
    assert told in lines[0]


def test_circular_longitude_must_divide(values):
    values["autoencoder"]["longitude"] = "circular"
    assert parse_config(values).latent_shape == (128, 23, 45)
    values["data"]["grid"]["longitudes"] = 1450
    told = "circular needs data.grid.longitudes, 1450, to be a multiple of 32; use halo"
    assert problems(values) == [f"autoencoder.longitude: {told}"]
    values["autoencoder"]["longitude"] = "halo"
    # 1450 takes 22 to be a multiple of 32, and 64 for the halo
    assert parse_config(values).latent_shape == (128, 23, (1450 + 22 + 64) // 32)


def test_a_halo_cannot_exceed_the_globe(values):
    values["data"]["grid"] = {"latitudes": 13, "longitudes": 24}
    assert problems(values) == [
        "autoencoder.hidden_channels: 6 levels are too many for 24 longitudes"
    ]


def test_a_state_needs_a_variable(values):
    values["data"] |= {"surface": [], "atmospheric": []}
    assert "a state needs a variable" in problems(values)[0]
    values["data"] |= {"surface": ["2m_temperature"], "levels": []}
    assert len(parse_config(values).channels) == 1


def test_all_mistakes_are_told_at_once(values):
    wrong = copy.deepcopy(values)
    wrong["autoencoder"]["latent_chanels"] = wrong["autoencoder"].pop("latent_channels")
    wrong["data"]["surface"] = ["sst", "temperature"]
    wrong["sampling"] |= {"stride": 30, "past": 30}
    del wrong["data"]["grid"]["latitudes"]
    lines = problems(wrong)
    assert [line.split(":")[0] for line in lines] == [
        "data.surface[0]",
        "data.surface[1]",
        "autoencoder.latent_chanels",
        "sampling.stride",
        "sampling.past",
        "data.grid.latitudes",
    ]
    assert lines[-1] == "data.grid.latitudes: missing; give it, or extend a preset"
