r"""Guidance: from the denoiser's mean to that given observations, by one of several methods."""

from .base import Guidance
from .cheaper import DPS, JFPS, PGDM, SDA, TMPD, DiffPIR
from .mmps import MMPS

__all__ = ["GUIDANCES", "Guidance"]

GUIDANCES: dict[str, type[Guidance]] = {
    "mmps": MMPS,
    "sda": SDA,
    "tmpd": TMPD,
    "pgdm": PGDM,
    "jfps": JFPS,
    "diffpir": DiffPIR,
    "dps": DPS,
}
