r"""The sections of a configuration: their keys, what they may hold, and what follows from them.

Reading a configuration, and telling what is wrong with one, is :mod:`appa.config`.
"""

from __future__ import annotations

import math
from datetime import date, datetime
from functools import cached_property
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic import ValidationInfo as Info
from pydantic import field_validator as check

from .data.grids import Grid
from .data.variables import ATMOSPHERIC, LEVELS, SURFACE, VARIABLES, Channel, Unnamed, channels
from .errors import DataError, nearest
from .observations.networks import SATELLITE_ERROR, STATION_ERROR

__all__ = ["Config", "Problems", "Section", "show"]


class Problems(ValueError):
    r"""Problems with what lies below a key, as `(key below, what is wrong)`."""

    def __init__(self, *problems: tuple[str, str]):
        super().__init__(problems)
        self.problems = problems


def _period(value: Any) -> Any:
    example = "expected two dates, for example [1993-01-01, 2019-12-31]"
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"found {show(value)}, {example}")
    days = []
    for day in value:
        try:
            day = date.fromisoformat(day) if isinstance(day, str) else day
        except ValueError:
            raise ValueError(f"found {show(day)}, {example}") from None
        if not isinstance(day, date) or isinstance(day, datetime):
            raise ValueError(f"found {show(day)}, {example}")
        days.append(day)
    if days[0] > days[1]:
        raise ValueError(f"ends on {days[1]}, before it starts on {days[0]}")
    return tuple(days)


Count = Annotated[int, Field(gt=0, strict=True)]
Number = Annotated[int, Field(ge=0, strict=True)]  # 0 too
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
Flag = Annotated[bool, Field(strict=True)]
Period = Annotated[tuple[date, date], BeforeValidator(_period)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GridSection(Section):
    r"""The grid: its kind and its numbers of latitudes and longitudes."""

    kind: Literal["equiangular", "equiangular-cells", "gaussian"] = "equiangular"
    latitudes: Annotated[int, Field(ge=2, strict=True)]
    longitudes: Annotated[int, Field(ge=2, strict=True)]


class Splits(Section):
    r"""Periods of training, validation and test: first and last day, both included."""

    train: Period
    validation: Period
    test: Period

    @check("validation", "test")
    @classmethod
    def _in_order(cls, value: tuple[date, date], info: Info) -> tuple[date, date]:
        for name, (_, end) in info.data.items():
            if value[0] <= end:
                raise ValueError(
                    f"starts on {value[0]}, but {name} ends on {end}; splits follow one another "
                    "and share no day"
                )
        return value

    def period(self, name: str) -> slice:
        r"""A split as a slice for `dataset.sel(time=...)`, its last hour included."""
        start, end = getattr(self, name)
        return slice(f"{start}T00", f"{end}T23")


class Data(Section):
    r"""Variables, levels (hPa), grid and splits; the public store they come from. A model whose
    channels have no names, as some published weights, has a number of them instead."""

    unnamed: Count | None = None
    surface: Annotated[tuple[str, ...], Field(validate_default=True)] = SURFACE
    atmospheric: Annotated[tuple[str, ...], Field(validate_default=True)] = ATMOSPHERIC
    levels: tuple[Count, ...] = LEVELS
    grid: GridSection
    splits: Splits
    source: str | None = None

    @check("surface", "atmospheric", mode="before")
    @classmethod
    def _or_named(cls, names: Any, info: Info) -> Any:
        if info.data.get("unnamed") is None:
            return names
        if names not in ((), [], SURFACE, ATMOSPHERIC):
            raise ValueError(f"found {show(names)} beside unnamed; give names or a number")
        return ()

    @check("surface", "atmospheric")
    @classmethod
    def _known(cls, names: tuple[str, ...], info: Info) -> tuple[str, ...]:
        problems = []
        for i, name in enumerate(names):
            try:
                channels(*(([name], []) if info.field_name == "surface" else ([], [name])))
            except DataError as error:
                problems.append((f"[{i}]", str(error)))
            if name in names[:i]:
                problems.append((f"[{i}]", f"{name!r} is listed twice"))
        if problems:
            raise Problems(*problems)
        if not names and info.data.get("surface") == () and not info.data.get("unnamed"):
            raise ValueError("found [], and no surface variables either; a state needs a variable")
        return names

    @check("levels")
    @classmethod
    def _ascending(cls, levels: tuple[int, ...], info: Info) -> tuple[int, ...]:
        if list(levels) != sorted(set(levels)):
            right = sorted(set(levels))
            raise ValueError(f"found {show(levels)}, expected ascending and unique: {right}")
        if info.data.get("atmospheric") and not levels:
            raise ValueError("found [], expected at least one level for the atmospheric variables")
        return levels


class Autoencoder(Section):
    r"""The convolutional autoencoder. One level a width, each half the size of the one before;
    `blocks` is a number for each level, or one for all. The decoder mirrors the encoder unless it
    is given widths and blocks of its own, in the encoder's order, finest first. With `normals` it
    sees departures of states from their mean over time at each place."""

    latent_channels: Count
    hidden_channels: Annotated[tuple[Count, ...], Field(min_length=1)]
    blocks: Annotated[tuple[Number, ...], Field(validate_default=True)] = (3,)
    decoder_channels: Annotated[tuple[Count, ...], Field(validate_default=True)] = ()
    decoder_blocks: Annotated[tuple[Number, ...], Field(validate_default=True)] = ()
    longitude: Literal["halo", "circular"] = "circular"
    normals: Flag = False
    latent_noise: Annotated[float, Field(ge=0)] = 0.01
    saturation: Positive | None = 5.0

    @check("blocks", "decoder_blocks", "decoder_channels", mode="before")
    @classmethod
    def _for_each_level(cls, value: Any, info: Info) -> Any:
        levels = len(info.data.get("hidden_channels", "1"))
        if info.field_name == "decoder_channels":
            return value or info.data.get("hidden_channels", ())
        if info.field_name == "decoder_blocks":
            value = value or info.data.get("blocks", ())
        if type(value) is int:
            value = (value,)
        return value * levels if isinstance(value, list | tuple) and len(value) == 1 else value

    @check("hidden_channels", "decoder_channels")
    @classmethod
    def _more_than_one(cls, widths: tuple[int, ...]) -> tuple[int, ...]:
        if 1 in widths:
            raise ValueError(
                f"found {show(widths)}, expected 2 or more at each level (blocks normalize over "
                "channels, of which one alone has no variance)"
            )
        return widths

    @check("blocks", "decoder_blocks", "decoder_channels")
    @classmethod
    def _as_many(cls, value: tuple[int, ...], info: Info) -> tuple[int, ...]:
        levels = len(info.data.get("hidden_channels", value))
        if len(value) != levels:
            raise ValueError(f"found {show(value)}, expected {levels} numbers, one a level")
        return value

    @property
    def factor(self) -> int:
        r"""The reduction :math:`f` of each side of the grid, :math:`2^{\text{levels} - 1}`."""
        return 2 ** (len(self.hidden_channels) - 1)


class Denoiser(Section):
    r"""The diffusion transformer; `patch` is in hours."""

    width: Count
    blocks: Count
    heads: Count
    modulation: Count = 256
    patch: Count = 2

    @check("modulation")
    @classmethod
    def _in_pairs(cls, modulation: int) -> int:
        if modulation % 2:
            raise ValueError(
                f"found {modulation}, expected an even number, e.g. {modulation + 1} (noise levels "
                "are sines and cosines)"
            )
        return modulation

    @check("heads")
    @classmethod
    def _heads_share_width(cls, heads: int, info: Info) -> int:
        width = info.data.get("width", 2 * heads)
        if width % (2 * heads):
            raise ValueError(
                f"found {heads}, expected a number that divides the width {width} into even parts "
                "(rotary embedding pairs channels)"
            )
        return heads


class Schedule(Section):
    r"""Noise levels of the diffusion."""

    kind: Literal["rectified"] = "rectified"
    sigma_min: Positive = 1e-3
    sigma_max: Positive = 1e3

    @check("sigma_max")
    @classmethod
    def _above(cls, sigma_max: float, info: Info) -> float:
        if sigma_max <= info.data.get("sigma_min", 0):
            raise ValueError(
                f"found {sigma_max}, expected above sigma_min {info.data['sigma_min']}"
            )
        return sigma_max


class Training(Section):
    r"""How a network is trained. `batch_size` is that of one update, over all devices; the learning
    rate rises from 0 over `warmup` steps, and then decays to 0 over the rest; `betas` are how much
    of the averages of gradients, and of their squares, an update keeps, by default the optimizer's
    own. Gradients are clipped to the norm `clip`."""

    optimizer: Literal["soap", "adam"]
    learning_rate: Positive
    betas: tuple[Share, Share] | None = None
    warmup: Number = 0
    decay: Literal["none", "linear", "cosine"] = "none"
    batch_size: Count
    steps: Count
    clip: Positive | None = 1.0
    ema: Share | None = None
    precision: Literal["float32", "float16", "bfloat16"] = "float32"


class AutoencoderTraining(Training):
    r"""How the autoencoder is trained, as in :class:`Training`. The loss weighs channels by
    `level_weights`, those of the paper, and by `variable_weights`, which are 1 but for those
    given. With `rotations` each state is turned by some longitudes, others each time."""

    level_weights: Flag = True
    rotations: Flag = False
    variable_weights: dict[str, Positive] = {}

    @check("variable_weights")
    @classmethod
    def _known(cls, weights: dict[str, float]) -> dict[str, float]:
        for name in weights:
            if name not in VARIABLES:
                raise ValueError(f"unknown variable {name!r}{nearest(name, VARIABLES)}")
        return weights


class TrainingSection(Section):
    autoencoder: AutoencoderTraining
    denoiser: Training


class Sampling(Section):
    r"""How posterior trajectories are drawn. Hours are `stride`, between composed windows; `past`,
    given to each of sequential windows; `lag`, drawn again by the next; `new`, the most a window
    adds. `mode` `auto` composes up to a window, and goes on sequentially. The solver stops after
    `iterations` or at a relative residual of `tolerance`; where noise is above 30, after `early`
    iterations or at a larger residual. MMPS takes as many probes of observables' `curvature`, by
    default 2 of those that are curved. `representation` is what becomes of the part of states that
    latents cannot express: its error beside an observation's (`diagonal`, or correlated in time,
    `temporal`), and, with `residual`, drawn in the end.
    `precision` is that of the networks; `auto` is float16 on CUDA, else float32. `background`
    compares observations with the prior first: beyond `threshold` standard deviations they are
    left out (`check`), or count for less (`huber`). `understated` is the share by which noise is
    understated to the denoiser, so that draws do not lose variance, see
    :mod:`appa.diffusion.denoiser`."""

    sampler: Literal["multistep", "ddim", "predictor-corrector"] = "multistep"
    steps: Count = 22
    corrections: Number = 2
    correction_size: Positive = 0.1
    mode: Literal["auto", "composed", "sequential"] = "auto"
    stride: Count = 12
    past: Count = 4
    lag: Number | None = None
    new: Count | None = None
    sweeps: Number = 0
    guidance: Literal["mmps", "sda", "tmpd", "pgdm", "jfps", "diffpir", "dps"] = "mmps"
    solver: Literal["gmres", "cg"] = "gmres"
    iterations: Count = 10
    early: Count = 2
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.02
    curvature: Number | None = None
    representation: Literal["none", "diagonal", "temporal"] = "temporal"
    residual: Flag = True
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    background: Literal["none", "check", "huber"] = "none"
    threshold: Positive = 5.0
    understated: Annotated[float, Field(ge=0, lt=1)] = 0.0


class Observations(Section):
    r"""Errors of synthetic observations, in standard deviations of the field."""

    station_error: Positive = STATION_ERROR
    satellite_error: Positive = SATELLITE_ERROR


class Config(Section):
    r"""A whole configuration, with what follows from it."""

    data: Data
    window: Count = 24
    autoencoder: Autoencoder
    denoiser: Denoiser
    schedule: Schedule = Schedule()
    training: TrainingSection
    sampling: Sampling = Sampling()
    observations: Observations = Observations()

    @check("autoencoder")
    @classmethod
    def _fits_grid(cls, value: Autoencoder, info: Info) -> Autoencoder:
        if "data" not in info.data:
            return value
        w, f = info.data["data"].grid.longitudes, value.factor
        if value.longitude == "circular" and w % f:
            told = f"circular needs data.grid.longitudes, {w}, to be a multiple of {f}; use halo"
            raise Problems(("longitude", told))
        if value.longitude == "halo" and -w % f + 2 * f > 2 * w:
            told = f"{len(value.hidden_channels)} levels are too many for {w} longitudes"
            raise Problems(("hidden_channels", told))
        return value

    @check("denoiser")
    @classmethod
    def _fits_window(cls, value: Denoiser, info: Info) -> Denoiser:
        window = info.data.get("window", value.patch)
        if window % value.patch:
            raise Problems(("patch", f"found {value.patch}, expected to divide window, {window}"))
        return value

    @check("sampling")
    @classmethod
    def _strides_fit_window(cls, value: Sampling, info: Info) -> Sampling:
        if (window := info.data.get("window")) is None:
            return value
        problems = []
        if value.stride > window:
            problems.append(("stride", f"found {value.stride}, expected at most window, {window}"))
        elif (window - value.stride) % 2:
            told = f"found {value.stride}, expected {'odd' if window % 2 else 'even'} as window"
            problems.append(("stride", f"{told}, {window}: a window gives its middle hours"))
        if value.past >= window:
            problems.append(("past", f"found {value.past}, expected less than window, {window}"))
        elif (value.lag or 0) >= window - value.past:
            told = f"expected less than window - past, {window - value.past}"
            problems.append(("lag", f"found {value.lag}, {told}"))
        elif value.new is not None and value.new > window - value.past - (value.lag or 0):
            told = f"expected at most window - past - lag, {window - value.past - (value.lag or 0)}"
            problems.append(("new", f"found {value.new}, {told}"))
        if value.sweeps and window < 5:
            problems.append(
                ("sweeps", f"found {value.sweeps}, expected 0 for windows below 5 hours")
            )
        if problems:
            raise Problems(*problems)
        return value

    @cached_property
    def grid(self) -> Grid:
        r"""The grid."""
        return Grid(**self.data.grid.model_dump())

    @cached_property
    def channels(self) -> tuple[Channel | Unnamed, ...]:
        r"""The channels of a state, in order."""
        if self.data.unnamed is not None:
            return tuple(Unnamed(i) for i in range(self.data.unnamed))
        return tuple(channels(self.data.surface, self.data.atmospheric, self.data.levels))

    @property
    def state_shape(self) -> tuple[int, int, int]:
        r"""Shape :math:`(C, H, W)` of a state."""
        return len(self.channels), *self.grid.shape

    @property
    def state_bytes(self) -> int:
        r"""Bytes of a state in single precision, as a store without compression holds it."""
        return 4 * math.prod(self.state_shape)

    @property
    def padding(self) -> tuple[int, int, int, int]:
        r"""Rows above and below, and columns left and right, that the autoencoder adds.

        Latitude is padded to a multiple of the factor :math:`f`. A halo pads longitude likewise,
        by :math:`2 f` more; circular convolutions need none.
        """
        (h, w), f = self.grid.shape, self.autoencoder.factor
        h, w = -h % f, (-w % f + 2 * f) if self.autoencoder.longitude == "halo" else 0
        return h // 2, h - h // 2, w // 2, w - w // 2

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        r"""Shape :math:`(C, H, W)` of a latent state."""
        (h, w), f = self.grid.shape, self.autoencoder.factor
        top, bottom, left, right = self.padding
        return self.autoencoder.latent_channels, (top + h + bottom) // f, (left + w + right) // f

    @property
    def compression(self) -> float:
        r"""Numbers in a state for one in its latent."""
        (c, h, w), (lc, lh, lw) = self.state_shape, self.latent_shape
        return c * h * w / (lc * lh * lw)

    @property
    def tokens(self) -> int:
        r"""Tokens of a window in the denoiser."""
        _, h, w = self.latent_shape
        return h * w * self.window // self.denoiser.patch

    def to_yaml(self) -> str:
        r"""The configuration as YAML, every value written out; reads back as the same."""
        return yaml.dump(self.model_dump(), Dumper=_Dumper, sort_keys=False, width=100)


class _Dumper(yaml.SafeDumper):
    r"""Writes lists on one line."""


def _flow(dumper: yaml.SafeDumper, value: Any) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", list(value), flow_style=True)


_Dumper.add_representer(tuple, _flow)


def show(value: Any) -> str:
    r"""A value as messages name it: short, on one line."""
    if isinstance(value, list | tuple):
        text = "[" + ", ".join(show(v) for v in value) + "]"
    else:
        text = str(value) if isinstance(value, date) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
