r"""What does a guided evaluation cost? Ours against the plain way, its parts, and more members.

    python benchmarks/guided.py [--preset planet] [--members 1 2 4] [--rounds 3] [--output FILE]

One evaluation of MMPS for a 24-hour window: the denoiser, the decoder and the observations of the
network `paper-density` in every hour, two iterations of GMRES. Networks have fresh weights, which
cost what trained ones do; states are the bundled planet's at the nearest points of the grid.

- plain: the same arithmetic as formulas have it. States are decoded one at a time and computed
  again where a gradient passes (checkpointed); products with the Jacobian are `torch.func.jvp`,
  which decodes once more for each; the solver is azula's.
- appa: :class:`appa.diffusion.guidance.MMPS`, which linearizes the decoder once.

Both give the same answer: the table has the largest difference between them, in units of the
correction's size. Each measurement is in a process of its own, in single precision (TF32 on CUDA).

The floor is what the fewest operations would take at the speed this device multiplies matrices:
with :math:`k` iterations, :math:`k + 2` passes of the denoiser and :math:`2 k + 2` of the decoder
for each observed hour.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from azula.linalg.solve import gmres
from common import machine, peak, planet_states, write_json
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import appa
from appa import costs
from appa.config import load_config
from appa.data.planet import statistics
from appa.diffusion.guidance.linear import Linearized
from appa.progress import progress
from appa.tasks.assimilation import given_observations
from appa.tasks.building import build_autoencoder, build_denoiser
from appa.tasks.folders import gather
from appa.tasks.model import Model
from appa.tasks.posterior import StatesLikelihood
from appa.tasks.settings import Settings

WAYS = ("plain", "appa")
SIGMA = 1.0  # the level of noise, on which costs do not depend


class Case:
    r"""A window, its observations, and the model.

    Arguments:
        preset: A configuration.
        members: The number of members :math:`M`.
        iterations: The number of iterations of the solver.
    """

    def __init__(self, preset: str, members: int, iterations: int):
        self.config = config = load_config(preset)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.members, self.iterations = members, iterations
        torch.manual_seed(0)
        ds = planet_states(config, config.window)
        latents = config.latent_shape
        self.model = Model(
            config,
            build_autoencoder(config),
            build_denoiser(config),
            torch.zeros(latents[0]),
            torch.ones(latents[0]),
            gather(statistics(), ds),
            "benchmark",
        ).to(self.device)
        for parameter in self.model.denoiser.parameters():  # the last layer is zero when fresh
            parameter.data.add_(0.02 * torch.randn_like(parameter))
        network = appa.named_network(config.grid, "paper-density")
        observations = appa.read_observations(
            list(appa.observe(ds, network, seed=0, statistics=statistics()))
        )
        settings = Settings.of(
            config, iterations=iterations, tolerance=0.0, representation="none", residual=False
        )
        start = ds.time.values[0]
        posterior, _ = given_observations(self.model, observations, start, config.window, settings)
        likelihood = posterior.observed(0, range(config.window))
        assert isinstance(likelihood, StatesLikelihood)
        self.likelihood, self.guidance = likelihood, settings.guidance_of()
        self.times = posterior.times
        self.z_t = torch.randn(members, config.window, *latents, device=self.device)

    def denoise(self, z_t: Tensor) -> Tensor:
        return self.model.denoiser(z_t, SIGMA, self.times)

    def appa(self) -> Tensor:
        return self.guidance(self.denoise, self.z_t, SIGMA, self.likelihood)

    def plain(self) -> Tensor:
        (group,) = self.likelihood.groups

        def hour(z: Tensor, k: int) -> Tensor:
            return -group[k][1].departure(self.model.decode(z))

        def observe(z: Tensor, kept: bool = False) -> Tensor:
            parts = []
            for k, (t, _) in enumerate(group):
                at = z[:, t]
                again = checkpoint(hour, at, k, use_reentrant=False) if kept else hour(at, k)
                parts.append(again)
            return torch.cat([p for p in parts if isinstance(p, Tensor)], dim=1)

        with torch.enable_grad():
            z_t = self.z_t.detach().requires_grad_()
            mean = self.denoise(z_t)
            y = observe(mean, kept=True)

        def covariance(v: Tensor) -> Tensor:
            w = torch.autograd.grad(y, mean, v, retain_graph=True)[0]
            w = SIGMA**2 * torch.autograd.grad(mean, z_t, w, retain_graph=True)[0]
            return v + torch.func.jvp(observe, (mean.detach(),), (w,))[1]

        v = gmres(covariance, -y.detach(), iterations=self.iterations)
        return mean.detach() + SIGMA**2 * torch.autograd.grad(y, z_t, v)[0]

    def seconds(self, function: Callable[[], Any], rounds: int) -> float:
        r"""The fastest of several calls, after one that does not count."""
        found = []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            function()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            found.append(time.perf_counter() - start)
        return min(found[1:])


def measure(preset: str, way: str, members: int, iterations: int, rounds: int) -> dict[str, Any]:
    r"""One way, for a number of members."""
    case = Case(preset, members, iterations)
    before = peak()
    if case.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    function = getattr(case, way)
    answer = function()
    mean = case.denoise(case.z_t).detach() if members == 1 else None
    return {
        "way": way,
        "members": members,
        "observations": len(case.likelihood.variance),
        "seconds": case.seconds(function, rounds),
        "gigabytes": (
            torch.cuda.max_memory_allocated() if case.device.type == "cuda" else peak() - before
        )
        / 1e9,
        "answer": answer.cpu().numpy() if members == 1 else None,
        "mean": None if mean is None else mean.cpu().numpy(),
    }


def parts(preset: str, iterations: int, rounds: int) -> dict[str, Any]:
    r"""Where ours spends its time, and the floor, for one member."""
    case = Case(preset, 1, iterations)
    config, window = case.config, case.config.window
    z, z_t = torch.randn_like(case.z_t), case.z_t.clone().requires_grad_()
    mean = case.denoise(z_t)
    observed = Linearized(case.likelihood, z)
    u = torch.randn_like(observed.departure)
    seen = len(case.likelihood.groups[0])
    k = iterations
    took = {
        "denoiser, with its graph": (1, lambda: case.denoise(z_t)),
        "denoiser, backward": (
            k + 1,
            lambda: torch.autograd.grad(mean, z_t, z, retain_graph=True),
        ),
        "decoder and operators, with their graph": (1, lambda: Linearized(case.likelihood, z)),
        "products with Aᵀ": (k + 1, lambda: observed.At(u)),
        "products with A": (k, lambda: observed.A(z)),
        "products with L⁻¹": (2 * k, lambda: case.likelihood.whiten(u)),
    }
    rows = [
        {"part": name, "times": n, "seconds": case.seconds(f, rounds)}
        for name, (n, f) in took.items()
    ]
    speed = matmul(case)
    operations = (k + 2) * costs.denoiser_flops(config)
    operations += (2 * k + 2) * seen * costs.decoder_flops(config)
    return {
        "rows": rows,
        "window": window,
        "operations": operations,
        "flops": speed,
        "floor": operations / speed,
    }


def matmul(case: Case) -> float:
    r"""Operations a second of a large product of matrices."""
    n = 8192 if case.device.type == "cuda" else 2048
    a, b = torch.randn(2, n, n, device=case.device)
    return 2 * n**3 / case.seconds(lambda: a @ b, 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--preset", default="planet", help="a configuration")
    parser.add_argument("--members", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--iterations", type=int, default=2, help="of the solver")
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

    cases = [("plain", 1)] if "plain" in arguments.ways else []
    cases += [("appa", m) for m in arguments.members] if "appa" in arguments.ways else []
    spawn = multiprocessing.get_context("spawn")
    rest = (arguments.iterations, arguments.rounds)
    rows = []
    with (
        ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as pool,
        progress(len(cases) + 1, "evaluating", "measurements") as bar,
    ):
        for way, members in cases:
            rows.append(pool.submit(measure, arguments.preset, way, members, *rest).result())
            bar.advance()
        inside = pool.submit(parts, arguments.preset, *rest).result()
        bar.advance()
    difference = compare(rows)
    plain = next((row["seconds"] for row in rows if row["way"] == "plain"), None)
    one = next((row["seconds"] for row in rows if row["way"] == "appa"), None)
    for row in rows:
        each = row["seconds"] / row["members"]
        row["times_plain"] = plain / each if plain else None
        row["of_one"] = row["seconds"] / one if one and row["way"] == "appa" else None
    result = {
        "preset": arguments.preset,
        "machine": machine(),
        "iterations": arguments.iterations,
        "rows": rows,
        "difference": difference,
        "inside": inside,
    }
    write_json(arguments.output, result)
    print(f"{arguments.preset} on {machine()}, {rows[0]['observations']:,} observations\n")
    print(table(rows), inner(inside), sep="\n\n")
    if difference is not None:
        print(f"\nplain and appa differ by {difference:.1e} of the correction")


def compare(rows: list[dict[str, Any]]) -> float | None:
    r"""The largest difference of the answers, over the largest correction; leaves arrays out."""
    found = {row["way"]: row.pop("answer") for row in rows if row["members"] == 1}
    mean = {row["way"]: row.pop("mean") for row in rows if row["members"] == 1}
    for row in rows:
        for name in ("answer", "mean"):
            row.pop(name, None)
    if set(found) != set(WAYS):
        return None
    correction = np.abs(found["appa"] - mean["appa"]).max()
    return float(np.abs(found["appa"] - found["plain"]).max() / correction)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| way | members | s | s a member | × plain | of one member's | GB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        ratio, of = row["times_plain"], row["of_one"]
        cells = (
            row["way"],
            f"{row['members']}",
            f"{row['seconds']:.3g}",
            f"{row['seconds'] / row['members']:.3g}",
            "" if ratio is None else f"{ratio:.2f}",
            "" if of is None else f"{of:.2f}",
            f"{row['gigabytes']:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def inner(inside: dict[str, Any]) -> str:
    lines = ["| part | times | s each | s |", "|---|---:|---:|---:|"]
    for row in inside["rows"]:
        each, n = row["seconds"], row["times"]
        lines.append(f"| {row['part']} | {n} | {each:.3g} | {n * each:.3g} |")
    work, speed = inside["operations"] / 1e9, inside["flops"] / 1e9
    lines.append(
        f"| floor: {work:,.0f} GFLOP at {speed:,.0f} GFLOP/s | | | {inside['floor']:.3g} |"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
