r"""Guidance: from the denoiser's mean to that given observations, by one of several methods."""

from .base import Guidance
from .cheaper import DPS, JFPS, SDA, TMPD, DiffPIR
from .mmps import MMPS

__all__ = ["GUIDANCES", "Guidance"]

GUIDANCES: dict[str, type[Guidance]] = {
    "mmps": MMPS,
    "sda": SDA,
    "tmpd": TMPD,
    "jfps": JFPS,
    "diffpir": DiffPIR,
    "dps": DPS,
}
