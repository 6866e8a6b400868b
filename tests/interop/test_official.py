r"""The published checkpoint layout, and the numbers that belong to a model in it."""

from __future__ import annotations

import os
import pickle
import random
import shutil
from ast import literal_eval
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
import yaml
from safetensors.torch import load_file

from appa.data.variables import ATMOSPHERIC, LEVELS, SURFACE
from appa.diffusion.trajectory import TrajectoryDenoiser
from appa.errors import DataError
from appa.interop.official import import_official
from appa.interop.tensors import read_tensors
from appa.sections import Sampling
from appa.tasks.folders import ModelError
from appa.tasks.loading import load
from appa.tasks.model import Model
from appa.tasks.settings import Settings

EXAMPLE = Path(__file__).parents[1] / "data" / "official"
DUMP = "latents/dump0"
LAP = f"{DUMP}/denoisers/vit_small/0"


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    return load_file(EXAMPLE / "expected.safetensors")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    out = tmp_path_factory.mktemp("official") / "model"
    assert import_official(EXAMPLE, out) == out
    return load(out)


@pytest.fixture
def run(tmp_path) -> Path:
    r"""A copy of the example, to be spoilt."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "run"))


def agree(found: torch.Tensor, expected: torch.Tensor) -> None:
    r"""Agreement to 1e-4 of the values' size, as the vectors ask for."""
    assert found.shape == expected.shape
    assert found.dtype == torch.float32
    error = (found - expected).abs().max() / expected.abs().max()
    assert error < 1e-4, f"differs by {error:.1e}"


# ---------------------------------------------------------------- the numbers


def test_autoencoder(model, expected):
    with torch.no_grad():
        agree(model.autoencoder.encode(expected["ae.state"]), expected["ae.latent"])
        agree(model.autoencoder.decode(expected["ae.latent"]), expected["ae.decoded"])


def test_the_seam_of_the_halo(model, expected):
    r"""Of a state rotated by a latent's width: in deviations of reconstructions the error is half
    at the seam, whose weights are random and see all of the halo and more, and falls off to 0.03
    on the other side of the globe."""
    ae, x = model.autoencoder, expected["ae.state"]
    with torch.no_grad():
        y, turned = ae(x), ae(torch.roll(x, 8, dims=-1))
    error = torch.roll(turned, -8, dims=-1) - y
    columns = error.square().mean((0, 1, 2)).sqrt() / y.std()
    seam, opposite = torch.cat((columns[:8], columns[-8:])), columns[30:42]
    assert 0.3 < seam.square().mean().sqrt() < 0.5
    assert opposite.square().mean().sqrt() < 0.03


@pytest.mark.parametrize("sigma", [0.01, 1.0, 50.0])
def test_denoiser(model, expected, sigma):
    r"""With dates as the authors' integers, and as hours, one level a window or one for all."""
    z_t, mean = (expected[f"denoiser.sigma_{sigma}.{name}"] for name in ("input", "output"))
    integers = expected["denoiser.dates"]
    hours = np.datetime64("2020-02-28T21") + np.arange(6) * np.timedelta64(1, "h")
    assert [str(h)[:13] for h in hours] == [
        f"{y:04}-{m:02}-{d:02}T{h:02}" for y, m, d, h in integers.tolist()
    ]
    with torch.no_grad():
        for dates in (integers, integers.numpy(), hours, hours.astype("datetime64[ns]")):
            agree(model.denoiser(z_t, torch.tensor(sigma), dates), mean)
        agree(model.denoiser(z_t, torch.tensor([sigma]), hours[None]), mean)


def test_other_weights_are_other_numbers(model, expected, tmp_path):
    r"""The vectors are those of `model_last`, and tell it from `model_best`."""
    best = load(import_official(EXAMPLE, tmp_path / "best", which="model_best"))
    z_t, mean = (expected[f"denoiser.sigma_1.0.{name}"] for name in ("input", "output"))
    with torch.no_grad():
        found = best.denoiser(z_t, 1.0, expected["denoiser.dates"])
    assert (found - mean).abs().max() > 0.01


def test_schedule(model, expected):
    agree(model.denoiser.schedule.sigma(expected["schedule.t"]), expected["schedule.sigma"])


def test_composed_trajectory(model, expected):
    dates, stride = expected["trajectory.dates"].numpy(), int(expected["trajectory.stride"])
    trajectory = TrajectoryDenoiser(model.denoiser, dates, stride)
    with torch.no_grad():
        found = trajectory.mean(expected["trajectory.input"], expected["trajectory.sigma"])
    agree(found, expected["trajectory.output"])


def test_latents_are_standardized_with_the_noise(model, expected):
    stats = torch.load(EXAMPLE / DUMP / "stats.pth", weights_only=True)
    std = (stats["std"].double() ** 2 + 0.01**2).sqrt()
    z = (expected["ae.latent"] - stats["mean"][:, None, None]) / std[:, None, None]
    with torch.no_grad():
        agree(model.encode(expected["ae.state"]), z.float())
        agree(model.decode(z.float()), expected["ae.decoded"])


# ---------------------------------------------------------------- what becomes of the rest


def test_configuration(model):
    config = model.config
    assert config.state_shape == (11, 37, 72)
    assert config.latent_shape == (6, 5, 11)
    assert config.autoencoder.longitude == "halo"
    assert config.autoencoder.saturation == 5.0
    assert config.autoencoder.latent_noise == 0.01
    assert config.window == 6
    assert (config.schedule.sigma_min, config.schedule.sigma_max) == (1e-3, 1e3)
    # drawn as any model is, in windows of 6 hours, and by name as the authors did
    assert config.sampling == Sampling(stride=4, past=3)
    assert Settings.of(config, "paper").sampler == "predictor-corrector"
    assert model.standardizer is None


def test_every_tensor_arrives(model):
    r"""As many numbers as `keys.txt` lists, but for constants."""
    sizes = {"autoencoder": 0, "denoiser": 0}
    for line in (EXAMPLE / "keys.txt").read_text().splitlines():
        if line.startswith("#"):
            network = "autoencoder" if "autoencoder" in line else "denoiser"
            continue
        name, shape = line.split(" ", 1)
        if not name.endswith((".eps", ".freqs")):
            sizes[network] += int(np.prod(literal_eval(shape.split(" torch")[0])))
    assert sum(p.numel() for p in model.autoencoder.parameters()) == sizes["autoencoder"]
    assert sum(p.numel() for p in model.denoiser.parameters()) == sizes["denoiser"]


def test_channels_without_names_are_numbered(model):
    ds = model.sample("2021-03-21T00", hours=3, members=2, steps=2)
    assert ds["state"].dims == ("member", "time", "channel", "latitude", "longitude")
    assert ds["state"].shape == (2, 3, 11, 37, 72)
    assert ds["channel"].values.tolist() == list(range(11))


def statistics(levels: list[int]) -> xr.Dataset:
    r"""Statistics in the authors' form, whose values tell where they belong."""
    stats: dict[str, tuple] = {}
    for k, name in enumerate(SURFACE):
        stats[name] = ("statistic", [k + 0.0, k + 0.5])
    for k, name in enumerate(ATMOSPHERIC):
        mean = 1e4 * (k + 1) + np.array(levels, np.float64)
        stats[name] = (("level", "statistic"), np.stack([mean, mean / 10], axis=1))
    return xr.Dataset(stats, {"statistic": np.array(["mean", "std"], object), "level": levels})


def test_published_channels_have_names(run, tmp_path):
    r"""71 channels are the published ones, and their statistics are found among 37 levels."""
    weights = torch.load(run / DUMP / "ae" / "model.pth", weights_only=True)
    torch.manual_seed(0)
    for name in (
        "encoder.descent.0.0.weight",
        "decoder.ascent.3.1.weight",
        "decoder.ascent.3.1.bias",
    ):
        shape = [71 if n == 11 else n for n in weights[name].shape]
        weights[name] = torch.randn(shape)
    torch.save(weights, run / DUMP / "ae" / "model.pth")
    change(run / DUMP / "ae" / "config.yaml", "ae", in_channels=71)
    levels = sorted({1, 2, 10, *LEVELS, 975}, reverse=True)
    statistics(levels).to_zarr(tmp_path / "stats.zarr", zarr_format=2)

    model = load(import_official(run, tmp_path / "out", statistics=tmp_path / "stats.zarr"))
    assert [c.variable for c in model.config.channels[:6]] == list(SURFACE)
    assert [(c.variable, c.level) for c in model.config.channels[6:]] == [
        (name, level) for name in ATMOSPHERIC for level in LEVELS
    ]
    mean = [*range(6), *(1e4 * k + level for k in range(1, 6) for level in LEVELS)]
    assert model.standardizer is not None
    np.testing.assert_allclose(model.standardizer.mean.flatten(), mean)
    assert model.statistics["level"].values.tolist() == list(LEVELS)

    model = load(import_official(run, tmp_path / "without"))
    assert model.standardizer is None
    with pytest.raises(ModelError, match=r"has no statistics of its states.*--statistics"):
        model.sample("2021-03-21T00", hours=1, steps=1)

    statistics([500, 850]).to_zarr(tmp_path / "few.zarr", zarr_format=2)
    with pytest.raises(DataError, match="the statistics have no temperature at 50 hPa"):
        import_official(run, tmp_path / "few", statistics=tmp_path / "few.zarr")


def test_statistics_name_channels(run, tmp_path):
    r"""6 surface variables and 5 on one level are 11 channels."""
    statistics([500]).to_zarr(tmp_path / "stats.zarr", zarr_format=2)
    model = load(import_official(run, tmp_path / "out", statistics=tmp_path / "stats.zarr"))
    assert [c.name for c in model.config.channels[5:8]] == ["tp", "t500", "u500"]
    ds = model.sample("2021-03-21T00", hours=2, steps=2)
    assert ds["geopotential"].shape == (1, 2, 1, 37, 72)
    statistics([500, 850]).to_zarr(tmp_path / "more.zarr", zarr_format=2)
    with pytest.raises(ModelError, match="16 channels, but the autoencoder has 11"):
        import_official(run, tmp_path / "more", statistics=tmp_path / "more.zarr")


def test_statistics_without_levels(run, tmp_path):
    stats = statistics([500]).isel(level=0, drop=True)
    stats.to_zarr(tmp_path / "stats.zarr", zarr_format=2)
    with pytest.raises(ModelError, match="temperature and others without a coordinate level"):
        import_official(run, tmp_path / "out", statistics=tmp_path / "stats.zarr")


def test_tensors_tell_the_channels_of_latents(run, tmp_path, expected):
    r"""A published configuration has another number than its weights."""
    change(run / DUMP / "ae" / "config.yaml", "ae", lat_channels=3, latent_shape=[5, 11, 3])
    model = load(import_official(run, tmp_path / "out"))
    assert model.config.latent_shape == (6, 5, 11)
    with torch.no_grad():
        agree(model.autoencoder.encode(expected["ae.state"]), expected["ae.latent"])


# ---------------------------------------------------------------- what can be wrong


def change(path: Path, section: str, **values) -> None:
    settings = yaml.safe_load(path.read_text())
    settings[section] |= values
    path.write_text(yaml.safe_dump(settings))


def refused(run: Path, match: str, **options) -> None:
    r"""Raises one message, and leaves nothing behind."""
    out = run.parent / "refused"
    with pytest.raises(ModelError, match=match):
        import_official(run, out, **options)
    assert sorted(p.name for p in run.parent.iterdir() if "refused" in p.name) == []


FILES = [f"{DUMP}/ae/model.pth", f"{DUMP}/stats.pth", f"{LAP}/model_last.pth"]


@pytest.mark.parametrize("file", FILES)
def test_truncated(run, file):
    for share in (0.0, 0.4, 0.99):
        raw = (EXAMPLE / file).read_bytes()
        (run / file).write_bytes(raw[: int(share * len(raw))])
        refused(run, rf"{file} cannot be read .*cut short")


@pytest.mark.parametrize("file", [*FILES, f"{DUMP}/ae/config.yaml", f"{LAP}/config.yaml"])
def test_missing(run, file):
    (run / file).unlink()
    path = Path(file)
    refused(run, rf"no {path.name} in .*{path.parent}, which holds")


def test_missing_folders(run):
    refused(run / DUMP, "there is no latents in .*, which holds ae, denoisers, stats.pth")
    shutil.rmtree(run / LAP)
    refused(run, "vit_small holds no laps")
    refused(run / "nowhere", "there is no folder")


@pytest.mark.parametrize("file", FILES)
def test_foreign(run, file):
    path = run / file
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    refused(run, f"{file} is no file of tensors|{file} cannot be read")
    torch.save([1, 2, 3], path)
    refused(run, f"{file} holds list, expected tensors by name")
    torch.save({"weight": torch.ones(3)}, path)
    refused(run, f"{file}.*weight")


def test_garbled(run):
    r"""Bytes changed at random, mostly where it says what there is: read as tensors, or refused."""
    raw, path = (EXAMPLE / FILES[1]).read_bytes(), run / FILES[1]
    draw = random.Random(0)
    refusals = 0
    for _ in range(200):
        data = bytearray(raw)
        for _ in range(draw.randint(1, 20)):
            data[draw.randrange(1000)] = draw.randrange(256)
        path.write_bytes(data)
        try:
            read_tensors(path)
        except ModelError:
            refusals += 1
    assert refusals > 100


def test_weights_that_are_not_finite(run):
    path = run / FILES[0]
    weights = torch.load(path, weights_only=True)
    name = "encoder.descent.0.0.weight"
    weights[name].view(-1)[3] = torch.nan
    torch.save(weights, path)
    refused(run, f"{name} is not finite")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda name, t: {name: t.to_sparse()}, "{name} is sparse"),
        (lambda name, t: {name: t.to("meta")}, "{name} has a shape and no values"),
        (lambda name, t: {name: t.to(torch.complex64)}, "{name} holds complex64"),
        (lambda name, t: {name: t.to(torch.float8_e4m3fn)}, "{name} holds float8_e4m3fn"),
        (lambda name, t: {7: t}, "a tensor is named 7"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_tensors_that_are_no_weights(run, change, told):
    path, name = run / FILES[0], "encoder.descent.0.0.weight"
    weights = torch.load(path, weights_only=True)
    torch.save(weights | change(name, weights[name]), path)
    refused(run, told.format(name=name) + ", expected real numbers by name")


def test_a_bias_without_channels(run):
    r"""The one whose length says how many latents have."""
    path, name = run / FILES[0], "encoder.descent.3.2.bias"
    weights = torch.load(path, weights_only=True)
    assert weights[name].shape == (6,)
    torch.save(weights | {name: weights[name][0].clone()}, path)
    refused(run, rf"{name} has shape \(\), expected one number for each channel")


class Planted:
    r"""What a pickle with code in it looks like: reading it the usual way makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("plain", [False, True])
def test_code_is_not_executed(run, tmp_path, file, plain):
    trap = tmp_path / "executed"
    tensors = torch.load(run / file, weights_only=True)
    content = {**tensors, "planted": Planted(trap)}
    if plain:
        (run / file).write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, run / file)
    refused(run, rf"{file} is no file of tensors: .*Nothing of it was executed")
    assert not trap.exists()
    # the trap works: what is refused would have sprung it
    if plain:
        pickle.loads((run / file).read_bytes())
    else:
        torch.load(run / file, weights_only=False)
    assert trap.exists()


def test_tensors_are_all_accounted_for(run):
    path = run / LAP / "model_last.pth"
    weights = torch.load(path, weights_only=True)

    def write(**changes) -> None:
        new = {name.replace("__", "."): t for name, t in changes.items()}
        torch.save({k: t for k, t in (weights | new).items() if t is not None}, path)

    write(blocks__1__extra=torch.ones(2))
    refused(run, "blocks.1.extra is not known")
    write(blocks__0__theta=None)
    refused(run, "blocks.0.theta is missing")
    write(diffusion_time_encoder__freqs=None)
    refused(run, "diffusion_time_encoder.freqs is missing")
    write(out_proj__bias=torch.ones(13))
    refused(run, r"out_proj.bias has shape \(13,\), not \(12,\)")
    write(positional_embedding__0__freqs=torch.ones(16))
    refused(run, "positional_embedding.0.freqs is not the published constant")


@pytest.mark.parametrize(
    ("file", "section", "values", "match"),
    [
        ("ae", "ae", {"saturation": "tanh"}, "ae.saturation is 'tanh', expected 'softclip2'"),
        ("ae", "ae", {"resize": 16}, "ae.resize is 16, expected 8 for 4 levels"),
        ("ae", "ae", {"hid_blocks": 3}, "ae.hid_blocks is 3, expected positive whole numbers"),
        ("ae", "ae", {"hid_channels": [8, 12, 16, 32]}, r"encoder.descent.3.* has shape \(24,"),
        ("lap", "backbone", {"arch": "unet"}, "backbone.arch is 'unet', expected 'vit'"),
        ("lap", "backbone", {"patch_size": [2, 2, 2]}, r"patch_size is \[2, 2, 2\]"),
        ("lap", "train", {"noise_schedule": "cosine"}, "expected 'rectified'"),
        ("lap", "train", {"blanket_size": 8}, r"in_proj.weight has shape \(32, 60\), not"),
        # what no machine has room for
        ("ae", "ae", {"hid_channels": [8, 12, 16, 10**12]}, "10{12}.*expected at most 65,536"),
        ("ae", "ae", {"shape": [10**30, 72]}, "ae.shape is .* at most 65,536"),
        ("ae", "ae", {"in_channels": 10**12}, "ae.in_channels is .* at most 65,536"),
        ("ae", "ae", {"hid_blocks": [10**9, 1, 1, 1]}, "ae.hid_blocks is .* at most 1,024"),
        ("lap", "backbone", {"hid_channels": 10**12}, "backbone.hid_channels is .* at most 65,536"),
        ("lap", "backbone", {"mod_features": 10**12}, "backbone.mod_features is .* at most 65,536"),
        ("lap", "backbone", {"hid_blocks": 10**9}, "backbone.hid_blocks is .* at most 1,024"),
        ("lap", "train", {"blanket_size": 10**30}, "train.blanket_size is .* at most 65,536"),
    ],
)
def test_settings_that_are_not_the_published_ones(run, file, section, values, match):
    path = run / (LAP if file == "lap" else f"{DUMP}/ae") / "config.yaml"
    change(path, section, **values)
    refused(run, match)


@pytest.mark.parametrize("value", ["24", None, [6], 1, 6.0])
def test_windows_that_are_no_number(run, value):
    change(run / LAP / "config.yaml", "train", blanket_size=value)
    refused(run, r"train.blanket_size is .*, expected hours of a window")


def test_settings_that_are_not_there(run):
    path = run / DUMP / "ae" / "config.yaml"
    path.write_text("train: {}")
    refused(run, "config.yaml has no section 'ae'")
    path.write_text("ae: {shape: [37, 72]}")
    refused(run, "ae lacks 'hid_channels'")
    path.write_text("ae: [")
    refused(run, "config.yaml is not YAML")


def test_statistics_of_other_latents(run):
    torch.save({"mean": torch.zeros(7), "std": torch.ones(7)}, run / DUMP / "stats.pth")
    refused(run, r"mean has shape \(7,\), but latents have 6 channels")
    torch.save({"mean": torch.zeros(6), "std": torch.zeros(6)}, run / DUMP / "stats.pth")
    refused(run, "std is .*: it is damaged")


def test_several_choices(run, tmp_path):
    shutil.copytree(run / LAP, run / f"{DUMP}/denoisers/vit_small/1")
    refused(run, "holds 2 laps: 0, 1; choose one with --lap, e.g. --lap 0")
    refused(run, "holds no '7'; known: 0, 1", lap="7")
    shutil.copytree(run / DUMP, run / "latents" / "dump1")
    refused(run, "holds 2 latent dumps: dump0, dump1; choose one with --dump", lap="1")
    refused(run, "expected weights; did you mean 'model_best'", dump="dump1", which="model_bets")
    out = import_official(run, tmp_path / "out", dump="dump1", denoiser="vit_small", lap="1")
    assert sorted(os.listdir(out)) == [
        "autoencoder.safetensors",
        "config.yaml",
        "denoiser.safetensors",
    ]


def test_what_exists_is_not_overwritten(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("mine")
    with pytest.raises(ModelError, match="out exists already"):
        import_official(run, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["precious"]


def test_a_run_of_the_authors_is_no_model_folder():
    with pytest.raises(ModelError, match="convert it with: appa import-official"):
        load(EXAMPLE)
