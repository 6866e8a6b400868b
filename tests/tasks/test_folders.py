r"""Model folders are read back as written, and what is wrong with one is told."""

from __future__ import annotations

import json
import os
import struct

import numpy as np
import pytest
import torch
import xarray as xr
from safetensors.torch import load_file, save_file

from appa.errors import StoreError
from appa.tasks import folders
from appa.tasks.folders import (
    ModelError,
    digest,
    fit,
    gather,
    load_statistics,
    read_config,
    read_statistics,
    read_weights,
    whole,
    write_config,
    write_statistics,
    write_weights,
)

from . import small


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {"a.weight": torch.randn(5, 7), "latents.std": torch.rand(3) + 0.1}


def test_weights_as_they_were(tmp_path):
    x = tensors()
    x["view"] = x["a.weight"].T[:3]  # shares memory, and is in another order
    path = write_weights(tmp_path / "new" / "a.safetensors", x)
    assert os.listdir(path.parent) == ["a.safetensors"]
    (tmp_path / "any").touch()
    assert path.stat().st_mode == (tmp_path / "any").stat().st_mode  # others may read it
    for found in (read_weights(path), load_file(path)):
        assert set(found) == set(x)
        assert all(torch.equal(found[name], x[name]) for name in x)


def test_half_precision_on_disk(tmp_path):
    x = tensors()
    path = write_weights(tmp_path / "a.safetensors", x, half=True)
    assert load_file(path)["a.weight"].dtype == torch.float16
    found = read_weights(path)
    assert found["a.weight"].dtype == torch.float32
    # half precision has 11 bits
    np.testing.assert_allclose(found["a.weight"], x["a.weight"], rtol=2**-11)
    assert torch.equal(found["latents.std"], x["latents.std"])


def test_weights_replace_others_whole_or_not_at_all(tmp_path, monkeypatch):
    path = write_weights(tmp_path / "a.safetensors", tensors())
    before = path.read_bytes()

    def full(tensors, partial, **kwargs):
        partial.write_bytes(before[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "save_file", full)
    with pytest.raises(ModelError, match=r"cannot write .*a.safetensors.*No space left"):
        write_weights(path, {"other": torch.ones(3)})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_truncated_weights(tmp_path, share):
    path = write_weights(tmp_path / "a.safetensors", {"x": torch.randn(64, 64)})
    raw = path.read_bytes()
    path.write_bytes(raw[: int(share * len(raw))])
    with pytest.raises(ModelError, match=r"a\.safetensors cannot be read as weights .* cut short"):
        read_weights(path)


def test_foreign_weights(tmp_path):
    path = tmp_path / "a.safetensors"
    torch.save({"x": torch.ones(3)}, path)
    with pytest.raises(ModelError, match="no safetensors file"):
        read_weights(path)
    path.write_text("not weights at all, but a text that is long enough for a header")
    with pytest.raises(ModelError, match="no safetensors file"):
        read_weights(path)


def test_missing_weights_tell_what_is_there(tmp_path):
    write_config(tmp_path, small.config())
    write_weights(tmp_path / "denoiser.safetensors", tensors())
    with pytest.raises(
        ModelError,
        match=r"no autoencoder.safetensors in .*, which holds config.yaml, denoiser.safetensors",
    ):
        read_weights(tmp_path / "autoencoder.safetensors")
    with pytest.raises(ModelError, match="there is no folder"):
        read_weights(tmp_path / "nowhere" / "autoencoder.safetensors")


def test_weights_of_a_newer_format(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file(tensors(), path, metadata={"appa": "2"})
    with pytest.raises(ModelError, match=r"in format 2 .* reads up to 1: install a newer one"):
        read_weights(path)


def test_the_format_is_in_the_file(tmp_path):
    r"""Read here with nothing but the standard library."""
    raw = write_weights(tmp_path / "a.safetensors", tensors()).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    assert json.loads(raw[8 : 8 + length])["__metadata__"]["appa"] == "1"


def test_weights_that_do_not_fit():
    network = torch.nn.Linear(4, 3)
    good = {"weight": torch.ones(3, 4), "bias": torch.zeros(3)}
    fit(network, good, "a.safetensors")
    assert torch.equal(network.weight, good["weight"])
    for wrong, told in (
        ({"weight": torch.ones(3, 5)}, r"weight has shape \(3, 5\), not \(3, 4\)"),
        ({"other": torch.ones(3)}, "other is not known"),
        ({"bias": None}, "bias is missing"),
    ):
        bad = {name: tensor for name, tensor in (good | wrong).items() if tensor is not None}
        with pytest.raises(ModelError, match=f"a.safetensors does not fit .*: {told}"):
            fit(network, bad, "a.safetensors")


def test_digest_tells_values_names_and_shapes_apart():
    x = torch.arange(6.0).reshape(2, 3)
    same = digest({"b": x[:1], "a": x})
    assert digest({"a": x.T.contiguous().T, "b": x[:1].clone()}) == same
    changed = x.clone()
    changed[1, 2] += 1e-6
    others = ({"a": changed, "b": x[:1]}, {"a": x, "c": x[:1]}, {"a": x.reshape(3, 2), "b": x[:1]})
    assert len({same, *map(digest, others)}) == 4


def test_config_comes_back(tmp_path):
    write_config(tmp_path, small.config())
    assert read_config(tmp_path) == small.config()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelError, match=r"no config.yaml in .*, which holds nothing"):
        read_config(empty)


def statistics() -> xr.Dataset:
    pair = np.array([[280.0, 281.0], [5.0, 6.0]])
    return xr.Dataset(
        {
            "2m_temperature": ("statistic", pair[:, 0]),
            "sea_surface_temperature": ("statistic", pair[:, 1]),
            "temperature": (("statistic", "level"), pair),
        },
        {"statistic": ["mean", "std"], "level": list(small.LEVELS)},
    )


def test_statistics_and_fields_come_back(tmp_path):
    ds = small.states()
    height = np.linspace(0, 3e4, small.H * small.W, dtype=np.float32).reshape(small.H, small.W)
    ds["geopotential_at_surface"] = (("latitude", "longitude"), height)
    write_statistics(tmp_path, gather(statistics(), ds))
    found = read_statistics(tmp_path, small.config())
    assert found is not None
    for name, values in statistics().items():
        np.testing.assert_array_equal(found[name], values)
    assert found["undefined"].dtype == bool
    np.testing.assert_array_equal(found["undefined"], small.LAND)
    np.testing.assert_array_equal(found["land_sea_mask"], small.LAND)
    np.testing.assert_array_equal(found["geopotential_at_surface"], height)
    np.testing.assert_array_equal(found["latitude"], ds["latitude"])


def test_statistics_alone(tmp_path):
    assert read_statistics(tmp_path, small.config()) is None
    write_statistics(tmp_path, gather(statistics(), None))
    found = load_statistics(tmp_path / "statistics.nc")
    assert set(found.data_vars) == set(statistics().data_vars)


def test_statistics_of_another_grid(tmp_path):
    write_statistics(tmp_path, gather(statistics(), small.states().isel(latitude=slice(5))))
    with pytest.raises(ModelError, match=r"land_sea_mask in .* has shape \(5, 16\), .* \(9, 16\)"):
        read_statistics(tmp_path, small.config())


def test_damaged_statistics(tmp_path):
    path = write_statistics(tmp_path, statistics())
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(StoreError, match=r"statistics.nc' cannot be read as statistics"):
        read_statistics(tmp_path, small.config())


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(RuntimeError, match="half way"), whole(out) as folder:  # noqa: PT012
        (folder / "a").write_text("a")
        raise RuntimeError("half way")
    assert os.listdir(tmp_path) == []
    out.mkdir()  # an empty one is filled
    with whole(out) as folder:
        (folder / "a").write_text("a")
        assert os.listdir(out) == []
    assert os.listdir(out) == ["a"]
    with pytest.raises(ModelError, match="out exists already"), whole(out):
        pass
