r"""Ensembles on their way out: latents become a dataset, a few states at a time.

What is drawn is :math:`\tilde{z}`, and what a user gets a dataset with dimensions `(member, time,
level, latitude, longitude)`. Between them latents are decoded, a residual :math:`r` is added where
one was drawn, and the fields asked for are restored and put in their place: in arrays here, in a
store in :mod:`appa.tasks.output`. No more than a batch of states is ever held. Of residuals, which
are drawn a channel at a time, all hours at once, it is as many channels of as many members as fit
in a share of the memory; where these are not all, states are decoded again for each piece.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import yaml
from torch import Tensor

from .. import __version__
from ..data.clock import as_datetime64
from ..data.layout import COORDINATES
from ..data.netcdf import CONVENTIONS
from ..errors import DataError
from .fields import NONNEGATIVE, Field, blocks, decode_batch, fields, held
from .folders import digest
from .model import Model

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "Ensemble",
    "Residual",
    "determining",
    "differing",
    "model_digest",
    "provenance",
    "to_dataset",
]

MEMBER = {"long_name": "ensemble member", "standard_name": "realization", "units": "1"}
LATENTS = {"long_name": "standardized latent state", "units": "1"}

# What gives residuals of some members, by their places in what is written, and of some channels.
Residual = Callable[[slice, Sequence[int]], Tensor]


# ---------------------------------------------------------------- where an ensemble comes from


def model_digest(model: Model) -> str:
    r"""A hash of a model's weights, of the statistics of its latents, and of its normals."""
    tensors = {f"autoencoder.{k}": t for k, t in model.autoencoder.state_dict().items()}
    if model._denoiser is not None:
        tensors |= {f"denoiser.{k}": t for k, t in model.denoiser.state_dict().items()}
        tensors |= {"latents.mean": model.latent_mean, "latents.std": model.latent_std}
    if model.autoencoder.normals is not None:
        tensors["normals"] = model.autoencoder.normals
    return digest(tensors)


def provenance(
    model: Model,
    task: str,
    *,
    seed: int | None = None,
    settings: Any = None,
    observations: Any = None,
    **more: Any,
) -> dict[str, Any]:
    r"""The attributes that say how an ensemble was made.

    Arguments:
        model: The model.
        task: What was drawn, e.g. `"reanalysis"`.
        seed: The seed.
        settings: The settings of the draw.
        observations: The observations, of which the digest is kept, or a digest.
        more: Further attributes.
    """
    attrs: dict[str, Any] = {
        "Conventions": CONVENTIONS,
        "title": f"{task} of the global atmosphere",
        "source": f"appa {__version__}, torch {torch.__version__}",
        "task": task,
        "model": model.origin,
        "model_digest": model_digest(model),
        "configuration": model.config.to_yaml(),
    }
    if observations is not None:
        text = observations if isinstance(observations, str) else observations.digest()
        attrs["observations_digest"] = text
    if seed is not None:
        attrs["seed"] = int(seed)
    if settings is not None:
        plain = settings.model_dump() if hasattr(settings, "model_dump") else dict(settings)
        attrs["settings"] = json.dumps(plain)
    return attrs | more


def determining(attrs: Mapping[str, Any]) -> dict[str, Any]:
    r"""What of attributes of :func:`provenance` determines an ensemble's numbers.

    A run goes on where that is the same. A configuration's defaults of draws and of training are
    not part of it, since settings say what was chosen; the version is, which may draw otherwise.
    """
    kept = {key: value for key, value in attrs.items() if key not in ("model", "source")}
    if "configuration" in kept:
        sections = yaml.load(kept["configuration"], yaml.BaseLoader)  # dates are text, too
        kept["configuration"] = {
            key: value for key, value in sections.items() if key not in ("sampling", "training")
        }
    return kept | {"version": __version__}


def differing(ds: xr.Dataset, attrs: Mapping[str, Any]) -> list[str]:
    r"""What an ensemble was made of otherwise than attributes of :func:`provenance` say."""
    keys = ("task", "model_digest", "observations_digest", "seed", "settings")
    return [key for key in keys if key in attrs and str(ds.attrs.get(key)) != str(attrs[key])]


# ---------------------------------------------------------------- ensembles


class Ensemble(ABC):
    r"""An ensemble that is filled part by part; where its values go, subclasses know.

    Arguments:
        model: The model, whose decoder is used.
        times: The hours, `datetime64` with shape :math:`(T)`.
        members: The number of members :math:`M`.
        variables: The variables to give out: by default all, `()` for none.
        levels: The pressure levels to give out, in hPa, by default all.
        latents: Whether latents are given out too.
        attrs: The attributes, see :func:`provenance`.
        negatives: `"clip"` sets negative humidity and precipitation to zero, `"keep"` does not.
        batch: The number of states decoded at once, by default as many as memory allows.
    """

    def __init__(
        self,
        model: Model,
        times: Any,
        members: int,
        *,
        variables: Sequence[str] | None = None,
        levels: Sequence[int] | None = None,
        latents: bool = False,
        attrs: Mapping[str, Any],
        negatives: str = "clip",
        batch: int | None = None,
    ):
        if negatives not in ("clip", "keep"):
            raise DataError(f"found negatives {negatives!r}, expected 'clip' or 'keep'")
        self.model, self.latents, self.negatives = model, latents, negatives
        self.times = np.atleast_1d(as_datetime64(times)).astype("datetime64[ns]")
        self.members, self.hours = int(members), len(self.times)
        self.fields, self.levels = fields(model, variables, levels)
        if not self.fields and not latents:
            raise DataError("there is nothing to give out: choose variables, levels, or latents")
        self.attrs = dict(attrs)
        self.batch = batch or decode_batch(model)
        self.most = held(model)
        #: What is shown each state as it is written, before negative values are set to zero: its
        #: hour, the state, and which channels of it are written now.
        self.watch: Callable[[int, Tensor, Sequence[int]], None] | None = None

    def shapes(self) -> dict[str, tuple[tuple[str, ...], tuple[int, ...], dict[str, str]]]:
        r"""Dimensions, shape and attributes of each variable."""
        h, w = self.model.grid.shape
        lead = (self.members, self.hours)
        found = {}
        for field in self.fields:
            shape = (*lead, *([len(field.channels)] if len(field.dims) == 3 else []), h, w)
            found[field.name] = (("member", "time", *field.dims), shape, field.attrs)
        if self.latents:
            dims = ("member", "time", "latent_channel", "latent_y", "latent_x")
            found["latents"] = (dims, (*lead, *self.model.config.latent_shape), LATENTS)
        return found

    def coords(self) -> dict[str, Any]:
        grid = self.model.grid
        found: dict[str, Any] = {
            "member": ("member", np.arange(self.members), MEMBER),
            "time": ("time", self.times, COORDINATES["time"]),
        }
        if self.levels:
            found["level"] = ("level", np.array(self.levels, np.int64), COORDINATES["level"])
        if self.fields:
            for name in ("latitude", "longitude"):
                values = np.asarray(getattr(grid, name), np.float64)
                found[name] = (name, values, COORDINATES[name])
        if any("channel" in field.dims for field in self.fields):
            found["channel"] = ("channel", np.arange(len(self.fields[0].channels)))
        return found

    # ---------------------------------------------------------------- filling

    @torch.no_grad()
    def write(
        self,
        members: slice | Sequence[int],
        hours: slice,
        z: Tensor,
        residual: Tensor | Residual | None = None,
    ) -> None:
        r"""Decodes a part of the ensemble and puts it in its place.

        Arguments:
            members: The members, by their numbers, :math:`m` of them.
            hours: The hours, by their places in `times`, :math:`t` of them.
            z: Standardized latents, with shape :math:`(m, t, c, h, w)`.
            residual: What is added to decoded states, standardized, with shape :math:`(m, t, C,
                H, W)`, or what gives some members and channels of it.
        """
        chosen, (first, last) = self._part(members, hours)
        count = last - first
        self._fits(z, "latents", (len(chosen), count, *self.model.config.latent_shape))
        if isinstance(residual, Tensor):
            shape = (len(chosen), count, *self.model.config.state_shape)
            self._fits(residual, "residuals", shape)
            residual = _chosen(residual)
        self._finite(z, "latents", chosen, first)
        several, parts = len(chosen), [self.fields]
        if residual is not None and self.fields:
            several, parts = blocks(self.fields, count, self.most)
        for i in range(0, len(chosen), several):
            block = slice(i, i + several)
            here = _Block(chosen[block], first, z[block])
            negative = {
                field.name: np.zeros((len(here.members), count), np.int64)
                for field in self.fields
                if field.name in NONNEGATIVE
            }
            for k, part in enumerate(parts):
                channels = [c for field in part for c in field.channels]
                r = residual(block, channels) if residual is not None and part else None
                self._write(here, part, r, negative, last=k == len(parts) - 1)

    def _write(
        self,
        block: _Block,
        part: Sequence[Field],
        r: Tensor | None,
        negative: Mapping[str, np.ndarray],
        last: bool,
    ) -> None:
        r"""Writes fields of a block; with the last ones, latents, and a note that it is there."""
        flat, count = block.z.flatten(0, 1), block.z.shape[1]
        for i in range(0, len(flat), self.batch):
            x = self.model.decode(flat[i : i + self.batch].to(self.model.device)) if part else None
            j = i
            while j < min(i + self.batch, len(flat)):  # hours of one member after another
                k, h = divmod(j, count)
                stop = min((k + 1) * count, i + self.batch)
                member, first = block.members[k], block.first + h
                hours, n = slice(first, first + stop - j), 0
                whole = None if x is None or self.watch is None else x[j - i : stop - i]
                for field in part:
                    assert x is not None
                    y = x[j - i : stop - i, field.channels]
                    if r is not None:
                        y = y + r[k, h : h + stop - j, n : n + len(field.channels)].to(y)
                        n += len(field.channels)
                    self._finite(y[None], "states", [member], first)
                    values, found = field.restore(y, self.negatives == "clip")
                    where = (hours,) if field.levels is None else (hours, field.levels)
                    self._place(field.name, (member, *where), values)
                    if whole is not None:
                        whole[:, field.channels] = y
                    if field.name in negative:
                        negative[field.name][k, h : h + stop - j] += found
                if whole is not None and self.watch is not None:
                    channels = [c for field in part for c in field.channels]
                    for hour, state in enumerate(whole, first):
                        self.watch(hour, state, channels)
                if last:
                    if self.latents:
                        latents = flat[j:stop].detach().to("cpu", torch.float32).numpy()
                        self._place("latents", (member, hours), latents)
                    counts = {n: v[k, h : h + stop - j].tolist() for n, v in negative.items()}
                    self._note(member, hours.start, hours.stop, counts)
                j = stop

    @abstractmethod
    def _place(self, name: str, where: tuple[int | slice, ...], values: np.ndarray) -> None:
        r"""Puts a variable in its place: a member, its hours, and its levels if not all."""

    @abstractmethod
    def _note(self, member: int, first: int, last: int, negative: dict[str, list[int]]) -> None:
        r"""Notes that hours of a member are in their place, and how many values were negative."""

    def _part(self, members: slice | Sequence[int], hours: slice) -> tuple[list[int], Any]:
        if isinstance(members, slice):
            members = range(*members.indices(self.members))
        first, last, _ = hours.indices(self.hours)
        return [int(member) for member in members], (first, last)

    def _fits(self, x: Tensor, what: str, shape: tuple[int, ...]) -> None:
        if tuple(x.shape) != shape:
            raise DataError(f"{what} have shape {tuple(x.shape)}, expected {shape}")

    def _finite(self, x: Tensor, what: str, chosen: list[int], first: int) -> None:
        if bool(torch.isfinite(x.sum(dtype=torch.float64))):
            return
        bad = ~torch.isfinite(x).flatten(2).all(dim=2)
        if bad.any():
            i, h = (int(k) for k in bad.nonzero()[0])
            raise DataError(
                f"{what} of member {chosen[i]} at {self.times[first + h].astype('datetime64[h]')} "
                f"are not finite ({int(bad.sum())} of {bad.numel()} such): the draw diverged; take "
                "more steps or solver iterations, or look for observations with too small errors"
            )

    def _told(self, name: str, negative: Mapping[str, int]) -> dict[str, Any]:
        r"""What a variable's attributes say of its negative values."""
        if name not in NONNEGATIVE:
            return {}
        share = negative.get(name, 0) / math.prod(self.shapes()[name][1])
        done = "are set to 0" if self.negatives == "clip" else "are kept as the decoder gives them"
        comment = f"negative values, {100 * share:.3g} % of all, {done}"
        return {"comment": comment, "negative_share": share}


class _Block(NamedTuple):
    r"""Members that are written together, from an hour on."""

    members: list[int]
    first: int
    z: Tensor


def _chosen(residual: Tensor) -> Residual:
    return lambda members, channels: residual[members][:, :, list(channels)]


class EnsembleArrays(Ensemble):
    r"""Keeps an ensemble in memory; see :class:`Ensemble` for its arguments."""

    def __init__(self, model: Model, times: Any, members: int, **kwargs: Any):
        super().__init__(model, times, members, **kwargs)
        self.arrays = {
            name: np.full(shape, np.nan, np.float32)
            for name, (_, shape, _) in self.shapes().items()
        }
        self._negative: dict[str, dict[tuple[int, int], int]] = {}

    def _place(self, name: str, where: tuple[int | slice, ...], values: np.ndarray) -> None:
        self.arrays[name][where] = values

    def _note(self, member: int, first: int, last: int, negative: dict[str, list[int]]) -> None:
        for name, counts in negative.items():
            for hour, count in zip(range(first, last), counts, strict=True):
                self._negative.setdefault(name, {})[member, hour] = count

    def finish(self) -> xr.Dataset:
        r"""The dataset."""
        import xarray as xr

        total = {name: sum(counts.values()) for name, counts in self._negative.items()}
        data = {
            name: (dims, self.arrays[name], attrs | self._told(name, total))
            for name, (dims, _, attrs) in self.shapes().items()
        }
        return xr.Dataset(data, self.coords(), self.attrs)


def to_dataset(
    model: Model,
    z: Tensor,
    times: Any,
    *,
    residual: Tensor | Residual | None = None,
    attrs: Mapping[str, Any] | None = None,
    **options: Any,
) -> xr.Dataset:
    r"""Decodes an ensemble into a dataset in memory, the same that would be written.

    Arguments:
        model: The model.
        z: Standardized latents, with shape :math:`(M, T, c, h, w)`.
        times: The :math:`T` hours.
        residual: What is added to decoded states, see :meth:`Ensemble.write`.
        attrs: The attributes, by default that it is decoded.
        options: `variables`, `levels`, `latents`, `negatives` and `batch`, see :class:`Ensemble`.
    """
    attrs = provenance(model, "decoding") if attrs is None else attrs
    ensemble = EnsembleArrays(model, times, len(z), attrs=attrs, **options)
    ensemble.write(slice(None), slice(None), z, residual)
    return ensemble.finish()
