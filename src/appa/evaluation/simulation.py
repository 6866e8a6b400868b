r"""Simulation-based calibration: is a sampler's posterior that of its own prior?

Truths are drawn from the prior, :math:`x^* \sim p(x)`, observed, :math:`y \sim p(y \mid x^*)`, and
members drawn given the observations. If these are draws of :math:`p(x \mid y)`, truth and members
are exchangeable, and the rank of :math:`f(x^*, y)` among the members' is uniform for any :math:`f`
(Talts et al., 2018). What a model does not know of the weather takes no part: what is found is the
sampler's. Ranked are

* each number of the latents, and each field at each point, counted by channel;
* the *misfit* :math:`J(x)`, the mean square of :math:`y - \mathcal{M}(x)` in units of the errors,
  which sees what single numbers do not, as errors that are wrong together (Modrák et al., 2023);
* *projections* of the latents, means with random signs.

The latter are one rank a simulation, whose scatter is known. The former are as many as there are
numbers, which depend on each other; simulations do not, and are the sample of
:func:`~appa.evaluation.calibration.uniformity_test`.

Ranks do not tell by how much: of many observations the scatter of :math:`J` is small, and a truth
that fits better by a hundredth may do so always. The misfits themselves do. The truth's are those
of the noise that was added, so that :math:`\mathbb{E}[J(x^*)] = 1`; as draws of :math:`p(x \mid y)`
are exchangeable with the truth,

.. math:: \frac{\mathbb{E}[J(x)]}{\mathbb{E}[J(x^*)]} = 1 , \qquad
    x \sim p(x \mid y) , \quad y \sim p(y \mid x^*) .

Above 1 members fit less closely than draws of the posterior would, below 1 too closely. The ratio
is that of means over simulations: the mean of ratios would be larger where observations are few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from ..errors import DataError
from .calibration import uniformity_test
from .ranking import rank_counts, truth_ranks

__all__ = [
    "FAMILIES",
    "misfit_ratio",
    "projections",
    "simulated_calibration",
    "simulated_ranks",
    "single_rank_test",
    "summarize",
]

#: What is ranked, and the dimension that tells numbers of a kind apart.
FAMILIES = {"field": "channel", "latent": "latent_channel", "scalar": "quantity"}
#: The values of what is ranked once a simulation, of the truth and of members.
VALUES = ("scalar_truth", "scalar_members")
MISFIT = "misfit"
TESTS = ("bias", "dispersion", "p", "p_bias", "p_dispersion", "effective", "blocks")


def projections(latents: np.ndarray, count: int, seed: int) -> np.ndarray:
    r"""Means of latents :math:`(*, L, c, h, w)` with random signs, with shape :math:`(*, P)`."""
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], (count, *latents.shape[-4:]))
    lead = latents.shape[:-4]
    flat = latents.reshape(*lead, -1) @ signs.reshape(count, -1).T
    return flat / signs[0].size


def simulated_ranks(
    ensemble: xr.Dataset,
    truth: xr.Dataset,
    quantities: Mapping[str, tuple[float, np.ndarray]],
    *,
    regions: Sequence[str] = ("global",),
    seed: int = 0,
) -> xr.Dataset:
    r"""The ranks of one simulation.

    Arguments:
        ensemble: The members, with `latents` if they are to be ranked.
        truth: The truth they were drawn for, with the same variables.
        quantities: Further quantities of truth and of each of the members, with shape :math:`(M)`.
        regions: Names of :data:`~appa.evaluation.regions.REGIONS`.
        seed: The seed of broken ties.

    Returns:
        The shares of ranks, `field` with dimensions `(region, channel, rank)`, `latent` with
        `(latent_channel, rank)` and `scalar` with `(quantity, rank)`, and the area they are
        shares of, `field_weight`; the quantities themselves, `scalar_truth` with dimension
        `quantity` and `scalar_members` with `(quantity, member)`.
    """
    members = ensemble.sizes["member"]
    if members < 2:
        raise DataError(f"a rank is one among members: found {members}, expected 2 or more")
    rng = np.random.default_rng([seed, 0])
    data: dict[str, Any] = {}
    coords: dict[str, Any] = {"rank": np.arange(members + 1)}
    names = [str(n) for n in ensemble.data_vars if n != "latents"]
    if names:
        counts = rank_counts(ensemble[names], truth[names], regions=regions, seed=seed)
        total = counts["count"].sum("time")
        weight = total.sum("rank")
        data["field"] = (total / weight.where(weight > 0)).rename("field")
        data["field_weight"] = weight
    if "latents" in ensemble:
        x, y = (np.asarray(ds["latents"].values, np.float64) for ds in (ensemble, truth))
        ranks = truth_ranks(x - y.reshape(x.shape[1:]), rng)  # (L, c, h, w)
        per = np.moveaxis(ranks, 1, 0).reshape(ranks.shape[1], -1)
        shares = [np.bincount(row, minlength=members + 1) / len(row) for row in per]
        data["latent"] = (("latent_channel", "rank"), np.stack(shares))
        coords["latent_channel"] = np.arange(len(per))
    if quantities:
        rows = []
        for value, others in quantities.values():
            rank = truth_ranks(np.asarray(others, np.float64)[:, None] - value, rng)
            rows.append(np.bincount(rank, minlength=members + 1))
        data["scalar"] = (("quantity", "rank"), np.array(rows, np.float64))
        data[VALUES[0]] = ("quantity", np.array([value for value, _ in quantities.values()]))
        values = np.stack([np.asarray(others, np.float64) for _, others in quantities.values()])
        data[VALUES[1]] = (("quantity", "member"), values)
        coords["quantity"] = list(quantities)
    return xr.Dataset(data, coords, {"members": members})


def simulated_calibration(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    r"""Tests the ranks of simulations.

    Arguments:
        parts: What :func:`simulated_ranks` found of each.

    Returns:
        For each kind of ranks, `field`, `latent` and `scalar`: `<kind>_frequency` by rank, and
        what the tests say, `<kind>_bias`, `<kind>_dispersion`, `<kind>_p`, … with simulations as
        the sample; `<kind>_least`, the least `p` of bias and dispersion of the kind times their
        number (Bonferroni): below 0.05, one of them is not calibrated.

        Of those simulations that kept it, the misfit by observation: `misfit` by `source` (truth,
        members, their mean) and simulation; `misfit_ratio`, the members' over the truth's, of means
        over simulations, and `misfit_spread`, the standard deviation of each simulation's own.
    """
    if not parts:
        raise DataError("there is no simulation to test; draw some: appa calibrate MODEL")
    sizes = {int(part.attrs["members"]) for part in parts}
    if len(sizes) > 1:
        raise DataError(f"simulations have {sorted(sizes)} members; give those of one number")
    ranks = [part.drop_vars(VALUES, errors="ignore") for part in parts]
    whole = xr.concat(ranks, "simulation", coords="minimal", compat="override")
    data: dict[str, Any] = {}
    for kind, dim in FAMILIES.items():
        if kind not in whole:
            continue
        lead = [d for d in ("region", dim) if d in whole[kind].dims]
        f = whole[kind].transpose(*lead, "simulation", "rank")
        weight = xr.ones_like(f.isel(rank=0))
        if kind == "field":
            weight = whole["field_weight"].transpose(*lead, "simulation")
        found = np.empty((len(TESTS), *f.shape[:-2]))
        for at in np.ndindex(*f.shape[:-2]):
            if kind == "scalar":
                test = single_rank_test(f.values[at].sum(axis=0))
            else:
                test = uniformity_test(f.values[at], weight.values[at])
            found[(slice(None), *at)] = [test[key] for key in TESTS]
        for key, values in zip(TESTS, found, strict=True):
            data[f"{kind}_{key}"] = (lead, values)
        share = weight / weight.sum("simulation").where(lambda total: total > 0)
        data[f"{kind}_frequency"] = (f.fillna(0) * share).sum("simulation")
        p = found[[TESTS.index(key) for key in ("p_bias", "p_dispersion")]]
        known = p[np.isfinite(p)]
        data[f"{kind}_least"] = min(1.0, known.size * known.min()) if known.size else np.nan
    about = {"members": sizes.pop(), "simulations": len(parts)}
    return xr.Dataset(data).merge(misfit_ratio(parts)).assign_attrs(about)


def misfit_ratio(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    r"""The misfits of simulations that kept them, and the members' over the truth's; empty where
    none did, as those of an older version."""
    kept = [
        [part[name].sel(quantity=MISFIT).mean() for name in VALUES]
        for part in parts
        if VALUES[0] in part and MISFIT in part["quantity"].values
    ]
    if not kept:
        return xr.Dataset()
    misfit = np.array(kept, np.float64).T
    truth, members = misfit
    told = {"long_name": "mean square departure from observations in units of their errors"}
    ratio = {"long_name": "members' misfit over the truth's, 1 of an exact posterior"}
    spread = float(np.std(members / truth, ddof=1)) if len(kept) > 1 else np.nan
    data = {
        "misfit": (("source", "simulation"), misfit, told),
        "misfit_ratio": ((), members.mean() / truth.mean(), ratio),
        "misfit_spread": ((), spread, {"long_name": "standard deviation over simulations"}),
    }
    return xr.Dataset(data, {"source": ["truth", "members"]})


def single_rank_test(counts: np.ndarray) -> dict[str, float]:
    r"""Tests whether independent ranks, one a simulation, are uniform: their number is all that
    scatter depends on.

    Arguments:
        counts: How often each rank was found, with shape :math:`(K)`.

    Returns:
        As :func:`~appa.evaluation.calibration.uniformity_test`; `p` is Pearson's.
    """
    from scipy import stats

    n, k = counts.sum(), len(counts)
    u = (np.arange(k) + 0.5) / k - 0.5
    contrasts = {"bias": u, "dispersion": 12 * (u**2 + 1 / (12 * k**2))}
    found = {"p": float(stats.chisquare(counts).pvalue), "effective": n, "blocks": n}
    for key, c in contrasts.items():
        found[key] = float(counts @ c / n)
        z = (found[key] - c.mean()) / (c.std() / np.sqrt(n))
        found[f"p_{key}"] = float(2 * stats.norm.sf(abs(z)))
    return found


def summarize(found: xr.Dataset) -> dict[str, Any]:
    r"""The figures to quote: for each kind of ranks the mean bias and dispersion, and the least
    :math:`p`; the members' misfit over the truth's, where it is known."""
    told: dict[str, Any] = {key: int(found.attrs[key]) for key in ("members", "simulations")}
    for kind in FAMILIES:
        if f"{kind}_p" in found:
            told[kind] = {
                "bias": float(found[f"{kind}_bias"].mean()),
                "dispersion": float(found[f"{kind}_dispersion"].mean()),
                "least": float(found[f"{kind}_least"]),
            }
    if "misfit_ratio" in found:
        told[MISFIT] = float(found["misfit_ratio"])
    return told
