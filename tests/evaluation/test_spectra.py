r"""Spectra against harmonics from SciPy, Parseval's identity and chosen isotropic fields."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy import stats
from scipy.special import sph_harm_y

from appa.data.grids import Grid
from appa.errors import AppaError, DataError
from appa.evaluation.spectra import Spectra, power_spectrum, truncation, wavelength

pytest.importorskip("ducc0")

GRIDS = [
    Grid("gaussian", 12, 24),
    Grid("equiangular", 13, 24),
    Grid("equiangular-cells", 12, 24),
    Grid("gaussian", 12, 16),
]


def harmonic(grid: Grid, degree: int, m: int) -> np.ndarray:
    r"""A real, orthonormal harmonic."""
    theta = np.radians(90 - grid.latitude)[:, None]
    phi = np.radians(grid.longitude)[None, :]
    y = sph_harm_y(degree, abs(m), theta, phi)
    return (y.real if m == 0 else np.sqrt(2) * (y.real if m > 0 else y.imag)) * np.ones(grid.shape)


def basis(grid: Grid, last: int) -> tuple[np.ndarray, np.ndarray]:
    r"""All real harmonics up to a wavenumber, and the wavenumber of each."""
    pairs = [(n, m) for n in range(last + 1) for m in range(-n, n + 1)]
    return np.stack([harmonic(grid, *pair) for pair in pairs]), np.array([n for n, _ in pairs])


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_single_harmonics(grid):
    r"""A harmonic has all of its energy, 1/4π, at its wavenumber, up to the last."""
    last = truncation(grid)
    for n, m in ((0, 0), (1, 0), (2, -1), (5, 3), (last, 0), (last, last), (last, -2)):
        expected = np.zeros(last + 1)
        expected[n] = 9 / (4 * np.pi)
        found = power_spectrum(3 * harmonic(grid, n, m), grid)
        np.testing.assert_allclose(found, expected, atol=1e-13)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_energy_of_sums_and_parseval(grid):
    r"""Coefficients' squares add up by wavenumber, and all of them to the mean square by area."""
    last = truncation(grid)
    harmonics, wavenumber = basis(grid, last)
    a = np.random.default_rng(0).standard_normal((2, 3, len(wavenumber)))
    fields = np.einsum("abk,khw->abhw", a, harmonics)
    found = power_spectrum(fields, grid)
    expected = np.stack([(a**2)[..., wavenumber == k].sum(-1) for k in range(last + 1)], -1)
    np.testing.assert_allclose(found, expected / (4 * np.pi), rtol=1e-10)
    if grid.kind == "gaussian":  # whose weights integrate squares exactly
        square = (grid.weights[:, None] * fields**2).mean((-2, -1))
        np.testing.assert_allclose(found.sum(-1), square, rtol=1e-10)


def test_a_turned_planet_has_the_same_spectrum():
    grid = GRIDS[0]
    field = np.random.default_rng(1).standard_normal(grid.shape)
    found = power_spectrum(np.stack([np.roll(field, k, -1) for k in (0, 5)]), grid)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-10)


def test_steep_spectra():
    r"""Energies 10⁻¹⁰ of the largest are not lost to the transform's rounding."""
    grid = GRIDS[0]
    field = 1e5 * harmonic(grid, 1, 0) + harmonic(grid, 11, 4)
    found = power_spectrum(field, grid)
    assert found[11] == pytest.approx(1 / (4 * np.pi), rel=1e-6)


def test_isotropic_fields():
    r"""With independent coefficients of variance C_l, 4π S_l / C_l is χ² with 2l + 1 degrees of
    freedom: quantiles over states are its quantiles, within four standard errors."""
    grid, n = Grid("gaussian", 10, 20), 400
    harmonics, wavenumber = basis(grid, 9)
    variance = (1.0 + np.arange(10)) ** -3.0
    rng = np.random.default_rng(2)
    a = rng.standard_normal((n, len(wavenumber))) * np.sqrt(variance[wavenumber])
    fields = np.einsum("nk,khw->nhw", a, harmonics)
    spectra = Spectra(grid, [1.0, 10.0])
    for part in np.split(np.stack([fields, fields], 1), 4):
        spectra.update(part)
    found = 4 * np.pi * spectra.quantiles((0.05, 0.5, 0.95)) / variance
    np.testing.assert_allclose(found[:, 1], 100 * found[:, 0], rtol=1e-10)
    for q, row in zip((0.05, 0.5, 0.95), found[:, 0], strict=True):
        for k in range(10):
            law = stats.chi2(2 * k + 1)
            error = np.sqrt(q * (1 - q) / n) / law.pdf(law.ppf(q))
            assert abs(row[k] - law.ppf(q)) < 4 * error + 1e-3


def test_wavelengths():
    r"""Jeans' relation: the circumference over √(l(l+1))."""
    around = 2 * np.pi * 6371.229
    np.testing.assert_allclose(wavelength(np.array([1, 3])), around / np.sqrt([2, 12]))
    assert wavelength(0) == np.inf
    assert truncation(Grid("equiangular", 721, 1440)) == 719
    assert wavelength(719) == pytest.approx(55.6, abs=0.1)  # two cells of 0.25°


def test_undefined_and_misshapen_fields():
    grid = GRIDS[0]
    fields = np.ones((2, *grid.shape))
    fields[1, 3, 4] = np.nan
    found = power_spectrum(fields, grid)
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()
    with pytest.raises(DataError, match=r"shape \(24, 12\)"):
        power_spectrum(np.ones((24, 12)), grid)


def test_without_ducc0(monkeypatch):
    monkeypatch.setitem(sys.modules, "ducc0", None)
    with pytest.raises(AppaError, match=r"pip install 'appa-assimilation\[evaluation\]'"):
        power_spectrum(np.ones((12, 24)), GRIDS[0])
