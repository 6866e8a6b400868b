r"""Encoding a store of states into a store of latents.

Every hour of the store is encoded, :math:`z = E_\psi(x)`, whether or not hours are missing between.
The latents are written block by block (see :mod:`appa.data.writing`): killed, the same command
encodes the blocks that are missing. Blocks are dealt out to ranks where there are several, and the
first rank finishes the store when all are written.

A block's moments, over the hours of the training split, are kept beside it: count, mean and sum of
squared deviations of each channel in double precision. They merge as in
:mod:`appa.data.statistics` into the mean and standard deviation of latents, `latents_mean` and
`latents_std`, without reading a latent again. Where no hour is in the training split, all count.

Hours are cut into batches that begin with their block, so that neither an interruption nor the
number of ranks changes what a network sees at once.

A simulated state need not be stored to be encoded: :func:`encode_simulation` encodes them on the
device they come from.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import xarray as xr
import zarr
from torch import Tensor
from zarr.storage import LocalStore

from .. import __version__
from ..config import Config
from ..data.layout import COORDINATES
from ..data.reading import finite
from ..data.states import Standardizer
from ..data.stores import open_store
from ..data.variables import LEVELS, VARIABLES
from ..data.windows import WindowLoader, check_order
from ..data.writing import StoreWriter
from ..errors import DataError, StoreError
from ..machine import find_device
from ..progress import Progress, progress
from .folders import ModelError, check_grid, digest, read_statistics
from .loading import find, load_autoencoder
from .model import Model
from .ranks import distributed

if TYPE_CHECKING:
    from ..data.planet.circulation import Circulation
    from ..data.planet.simulation import Plan

__all__ = ["Encoder", "encode", "encode_simulation"]


class Moments(NamedTuple):
    r"""Count, mean and sum of squared deviations of the latents' channels.

    Arguments:
        n: How many values of each channel.
        mean: Their mean, with shape :math:`(c)`.
        squares: The sum of their squared deviations from it, with shape :math:`(c)`.
    """

    n: int
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, z: np.ndarray) -> Moments:
        r"""The moments of latents, with shape :math:`(T, c, h, w)`."""
        z = np.moveaxis(z, 1, 0).reshape(z.shape[1], -1).astype(np.float64)
        if z.shape[1] == 0:
            return cls(0, np.zeros(len(z)), np.zeros(len(z)))
        mean = z.mean(axis=1)
        return cls(z.shape[1], mean, np.square(z - mean[:, None]).sum(axis=1))

    def merge(self, other: Moments) -> Moments:
        r"""The moments of both."""
        n = self.n + other.n
        if n == 0:
            return self
        share, delta = other.n / n, other.mean - self.mean
        squares = self.squares + other.squares + self.n * share * delta**2
        return Moments(n, self.mean + share * delta, squares)

    @property
    def std(self) -> np.ndarray:
        r"""The standard deviation, with shape :math:`(c)`."""
        return np.sqrt(self.squares / max(self.n, 1))


def encode(
    model: str | Path,
    store: str | Path | xr.Dataset,
    out: str | Path,
    *,
    batch: int = 16,
    block: int | None = None,
    workers: int = 4,
    device: str | torch.device | None = None,
) -> Path:
    r"""Encodes every state of a store.

    Under `torchrun`, every process calls this with the same arguments.

    Arguments:
        model: The model: a bundled name, or a folder with an autoencoder.
        store: The store of states, see :func:`appa.data.stores.open_store`.
        out: The latent store to write, which must not exist yet.
        batch: The number of states encoded at once.
        block: The hours finished at a time, by default those of a shard.
        workers: The threads that read states.
        device: Where to encode, by default a GPU where there is one.

    Returns:
        The store: `latents` with dimensions `(time, channel, y, x)`, as the autoencoder gives them,
        and `latents_mean` and `latents_std` over the hours of the training split.

    Example:
        >>> encode("run", "planet-1901.zarr", "latents.zarr")
        >>> loader = WindowLoader("latents.zarr", window=24, batch_size=64)
    """
    if batch < 1 or (block is not None and block < 1):
        raise DataError(f"batch and block must be 1 or more, found {batch} and {block}")
    encoder, states = Encoder(model, batch), open_store(store)
    check_order(states)  # else latents could not be trained on
    template = encoder.template(states)
    WindowLoader(store, 1, 1, standardizer=encoder.states)  # what it lacks, before there is a file
    name = "a dataset" if isinstance(store, xr.Dataset) else Path(str(store)).name
    plan = {**encoder.plan, "store": name}

    # Ranks speak of little, and some have more to do than others, by hours.
    with distributed(device, backend="gloo", timeout=timedelta(days=7)) as ranks:
        # The first process holds the store's lock; the others write on its behalf.
        writer = ranks.first(lambda: StoreWriter(out, template, block=block, plan=plan))
        with writer if ranks.main else nullcontext():
            todo = ranks.first(lambda: writer.remaining)
            mine = todo[ranks.rank :: ranks.world]
            if mine:
                loader = _loader(store, encoder.states, writer, mine, batch, workers)
                encoder.model.to(ranks.device)
                with _progress(ranks.main, writer, todo, mine) as p:
                    for i, z in _blocks(encoder, loader, writer, mine, p):
                        writer.put("latents", writer.blocks[i].start, z)
                        encoder.note(writer, i, {"latents": z})
                        writer.mark(i)
            ranks.barrier()
            ranks.first(lambda: encoder.finish(writer))
    return Path(out)


def encode_simulation(
    model: str | Path,
    plan: Plan,
    out: str | Path,
    *,
    batch: int = 64,
    compression: str = "none",
    device: str | torch.device | None = None,
    circulation: Circulation | None = None,
) -> Path:
    r"""Simulates members, see :func:`appa.data.planet.simulation.simulate`, and stores the latents
    of their states only: what :func:`encode` makes of them, in a sixtieth of the room.

    Arguments:
        model: The model: a bundled name, or a folder with an autoencoder.
        plan: What to simulate.
        out: The latent store to write, which must not exist yet.
        batch: The number of states encoded at once.
        compression: `"none"` or `"zstd"`, see :class:`appa.data.writing.StoreWriter`.
        device: Where to encode, by default a GPU where there is one.
        circulation: The circulation, by default a new one.

    Example:
        >>> encode_simulation("run", Plan(members=36, days=360, stretch=72, each=5), "latents.zarr")
    """
    from ..data.planet.simulation import simulate

    place = find_device(device)
    encoder = Encoder(model, batch)
    encoder.model.to(place)
    simulate(out, plan, compression=compression, circulation=circulation, transform=encoder)
    return Path(out)


# ---------------------------------------------------------------- what is encoded


class Encoder:
    r"""Latents of states, and what a store of them says.

    Arguments:
        model: The model: a bundled name, or a folder with an autoencoder.
        batch: The number of states encoded at once.
    """

    def __init__(self, model: str | Path, batch: int):
        folder = find(model)
        self.config, autoencoder = load_autoencoder(folder)
        self.model = Model(
            self.config, autoencoder, statistics=read_statistics(folder, self.config)
        )
        states = self.model.standardizer
        if states is None:
            why = "its channels have no names" if self.model.unnamed else "it has no statistics"
            raise ModelError(
                f"{folder} cannot encode a store: {why}, so that states cannot be made of one; "
                "import it again with --statistics, or train it on a store"
            )
        self.states, self.batch = states, batch
        self.plan = {
            "autoencoder": digest(autoencoder.state_dict()),
            "statistics": _digest(self.model, states),
        }

    def template(self, states: xr.Dataset) -> xr.Dataset:
        r"""The latent store of a store, without its values."""
        check_grid(states, self.config)
        self.counted, period = _counted(states["time"].values, self.config)
        self.plan["statistics_period"] = period
        return _template(states, self.config, self.plan["autoencoder"], period)

    @torch.no_grad()
    def latents(self, x: Tensor) -> np.ndarray:
        r"""The latents of standardized states :math:`(T, C, H, W)`, with shape
        :math:`(T, c, h, w)`."""
        x = x.to(self.model.device, non_blocking=True)
        return self.model.autoencoder.encode(x).cpu().numpy()

    def fields(self, states: dict[str, Any]) -> dict[str, np.ndarray]:
        r"""The latents of physical fields on any device, each :math:`(M, T, ...)` with
        :math:`(H, W)` or :math:`(P, H, W)` of all levels, with shape :math:`(M, T, c, h, w)`."""
        missing = [level for level in self.states.levels if level not in LEVELS]
        if missing:
            raise DataError(f"the simulation has no level of {missing[0]} hPa; it has {LEVELS}")
        levels = [LEVELS.index(level) for level in self.states.levels]
        whole = [VARIABLES[c.variable].missing != "land" for c in self.states.channels]
        # without a copy, where what simulates and what encodes share a device
        taken = {name: torch.from_dlpack(states[name]) for name in self.states.names}
        members, hours = next(iter(taken.values())).shape[:2]
        z = np.empty((members, hours, *self.config.latent_shape), np.float32)
        for m in range(members):
            for a in range(0, hours, self.batch):
                parts = [f[m, a : a + self.batch].to(self.model.device) for f in taken.values()]
                y = torch.cat([p[:, None] if p.ndim == 3 else p[:, levels] for p in parts], 1)
                # standardized, what is undefined would be the mean
                if bool(torch.isfinite(y[:, whole].sum())):
                    z[m, a : a + self.batch] = self.latents(self.states.standardize(y))
                else:
                    z[m, a : a + self.batch] = np.nan
        return {"latents": z}

    def note(self, writer: StoreWriter, block: int, fields: dict[str, np.ndarray]) -> None:
        r"""Keeps the moments of a block's latents :math:`(T, c, h, w)`."""
        z = fields["latents"]
        _note(writer, block, Moments.of(z[self.counted[writer.blocks[block]]]))

    def finish(self, writer: StoreWriter) -> None:
        r"""Adds the statistics, and gives the store its name."""
        _finish(writer)


def _counted(times: np.ndarray, config: Config) -> tuple[np.ndarray, str]:
    r"""Which hours count in the statistics, with shape :math:`(T)`, and what they are in words."""
    first, last = (np.datetime64(day, "D") for day in config.data.splits.train)
    days = times.astype("datetime64[D]")
    counted = (days >= first) & (days <= last)
    if counted.any():
        return counted, f"{first} to {last}"
    return np.ones(len(times), bool), "all hours"


def _template(ds: xr.Dataset, config: Config, weights: str, period: str) -> xr.Dataset:
    r"""The latent store, without its values."""
    shape, dims = config.latent_shape, ("time", "channel", "y", "x")
    blank = np.broadcast_to(np.float32(np.nan), (ds.sizes["time"], *shape))
    unknown = np.full(shape[0], np.nan)
    coords: dict[str, Any] = {"time": ("time", ds["time"].values, COORDINATES["time"])}
    if "trajectory" in ds.coords:
        values = ds["trajectory"].values.astype(np.int64)
        coords["trajectory"] = ("time", values, COORDINATES["trajectory"])
    return xr.Dataset(
        {
            "latents": (dims, blank, {"long_name": "latent state, not standardized"}),
            "latents_mean": ("channel", unknown, {"long_name": "mean of latents"}),
            "latents_std": ("channel", unknown, {"long_name": "standard deviation of latents"}),
        },
        coords,
        {
            "title": "latents of atmospheric states",
            "autoencoder": weights,
            "statistics_period": period,
            "latent_noise": config.autoencoder.latent_noise,
            "source": f"appa {__version__}",
        },
    )


def _digest(model: Model, states: Standardizer) -> str:
    r"""A hash of what standardizes states: with another, latents are others."""
    sha = hashlib.sha256()
    normals = model.autoencoder.normals
    for array in (states.mean.numpy(), states.std.numpy(), states.sea, normals):
        sha.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


# ---------------------------------------------------------------- the work


def _loader(
    store: Any,
    states: Standardizer,
    writer: StoreWriter,
    mine: list[int],
    batch: int,
    workers: int,
) -> WindowLoader:
    r"""Reads the hours of blocks, in batches that fit into a block."""
    batch = next(n for n in range(min(batch, writer.block), 0, -1) if writer.block % n == 0)
    loader = WindowLoader(
        store,
        window=1,
        batch_size=batch,
        standardizer=states,
        shuffle=False,
        drop_last=False,
        workers=workers,
        pin_memory=True,
    )
    # One after another, so that reading ahead does not pause between blocks.
    loader.starts = np.concatenate([np.r_[writer.blocks[i]] for i in mine])
    return loader


def _blocks(
    encoder: Encoder,
    loader: WindowLoader,
    writer: StoreWriter,
    mine: list[int],
    p: Progress | None,
) -> Iterator[tuple[int, np.ndarray]]:
    r"""The latents of blocks, one block at a time, with shape :math:`(T, c, h, w)`."""
    batches = iter(loader)
    for i in mine:
        hours = writer.blocks[i]
        z, n = np.empty((hours.stop - hours.start, *encoder.config.latent_shape), np.float32), 0
        while n < len(z):
            x, dates = next(batches)
            z[n : n + len(x)] = encoder.latents(x[:, 0])
            if not finite(z[n : n + len(x)]):
                raise DataError(
                    f"latents between {dates.min()} and {dates.max()} are not finite; the weights "
                    "of the autoencoder are damaged, or states are far from those it knows"
                )
            n += len(x)
            if p is not None:
                p.advance(len(x))
        yield i, z


@contextmanager
def _progress(
    main: bool, writer: StoreWriter, todo: list[int], mine: list[int]
) -> Iterator[Progress | None]:
    r"""The progress of the first rank, which has as much to do as any other."""
    if not main:
        yield None
        return
    hours = {i: block.stop - block.start for i, block in enumerate(writer.blocks)}
    already = sum(n for i, n in hours.items() if i not in set(todo))
    with progress(already + sum(hours[i] for i in mine), "encoding", unit="hours") as p:
        p.skip(already)
        yield p


# ---------------------------------------------------------------- statistics


def _note(writer: StoreWriter, i: int, moments: Moments) -> None:
    r"""Keeps the moments of a block until the store is finished, written aside and renamed."""
    file = writer.directory / "moments" / f"{i}.json"
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    values = {"n": moments.n, "mean": moments.mean.tolist(), "squares": moments.squares.tolist()}
    try:
        file.parent.mkdir(exist_ok=True)
        with open(partial, "w") as f:
            json.dump(values, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(partial, file)
    except OSError as error:
        raise StoreError(
            f"cannot write {file} ({error}); what is finished is kept: make room and rerun"
        ) from error


def _noted(writer: StoreWriter) -> Iterable[Moments]:
    for i in range(len(writer.blocks)):
        file = writer.directory / "moments" / f"{i}.json"
        try:
            values = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{file} cannot be read ({error}): the statistics of block {i} are lost; remove "
                f"{writer.path_partial} and rerun"
            ) from error
        yield Moments(values["n"], np.array(values["mean"]), np.array(values["squares"]))


def _finish(writer: StoreWriter) -> None:
    r"""Adds the statistics, and gives the store its name."""
    if not writer.remaining:
        first, *others = _noted(writer)
        for other in others:
            first = first.merge(other)
        try:
            for name, value in (("latents_mean", first.mean), ("latents_std", first.std)):
                array = zarr.open_array(LocalStore(writer.path_partial / name), mode="r+")
                array[:] = value
        except OSError as error:
            raise StoreError(
                f"cannot write {writer.path_partial} ({error}); make room and rerun"
            ) from error
    writer.finish()
