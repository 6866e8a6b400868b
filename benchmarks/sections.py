r"""The questions that `full_size.py` and `small.py` ask, as sections of a report.

Each is a generator of rows: what a row is called, and what measures it. Floors are the operations
counted (:func:`windows.operations`) at the speed of a large product of matrices in the same
precision, measured in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from common import matmul, measure, planet_states, release
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from windows import World, operations

import appa
from appa.config import load_config
from appa.data.planet import statistics
from appa.diffusion.guidance.linear import Linearized
from appa.solvers import gmres
from appa.tasks.building import build_autoencoder, build_denoiser

__all__ = [
    "Bench",
    "grids",
    "guided",
    "inside",
    "lengths",
    "observed",
    "parts",
    "profile",
    "reanalysis",
    "speed",
]

Rows = Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]

AT_ONCE = (None, 12, 6, 3, 1)  # hours decoded at once, until it fits in memory


class Bench:
    r"""A world, made when it is first asked for, and what is measured of it once.

    Arguments:
        preset: A configuration.
        device: Where.
        precision: That of the networks.
        rounds: Calls that count in each measurement.
        iterations: The number of iterations of the solver.
        stations: The number of stations, by default one in a hundred grid points.
    """

    def __init__(
        self,
        preset: str,
        device: torch.device,
        precision: str,
        rounds: int = 3,
        iterations: int = 2,
        stations: int | None = None,
    ):
        self.config, self.device, self.precision = load_config(preset), device, precision
        self.rounds, self.iterations = rounds, iterations
        self.make = lambda: World(preset, device, precision, iterations, stations)

    @cached_property
    def world(self) -> World:
        return self.make()

    @cached_property
    def counts(self) -> dict[str, float]:
        return operations(self.config)

    @cached_property
    def rate(self) -> float:
        r"""Operations a second."""
        return matmul(self.device, getattr(torch, self.precision))

    def measure(self, run: Callable[[], Any], flops: float = 0.0, units: int = 1) -> dict[str, Any]:
        r"""Milliseconds of a state or window, memory, and the distance from the floor."""
        found = measure(run, self.device, self.rounds)
        row = {"ms": 1e3 * found["seconds"] / units, "GiB": found["gibibytes"]}
        if flops:
            floor = 1e3 * flops / self.rate
            row |= {"TFLOP": flops / 1e12, "floor ms": floor, "× floor": row["ms"] / floor}
        return row

    def floor(self, hours: int) -> float:
        r"""Seconds of the fewest operations of a guided evaluation."""
        k, c = self.iterations, self.counts
        decoder = c["decode"] + k * (c["product"] + c["transposed"])
        flops = c["denoise"] + k * c["denoise back"] + hours * decoder
        return flops / self.rate


# ---------------------------------------------------------------- the machine


def speed(bench: Bench) -> Rows:
    r"""What the device does at best: matrices, memory, attention."""
    device, cuda = bench.device, bench.device.type == "cuda"
    for name in dict.fromkeys((bench.precision, "float32")):
        yield (
            {"what": f"product of matrices, {name}"},
            lambda name=name: {"TFLOP/s": matmul(device, getattr(torch, name)) / 1e12},
        )
    x = torch.empty(2**30 if cuda else 2**25, device=device)
    y = torch.empty_like(x)
    yield (
        {"what": "copy"},
        lambda: {"GB/s": 8e-9 * len(x) / measure(lambda: y.copy_(x), device, 5)["seconds"]},
    )
    section, n = bench.config.denoiser, bench.config.tokens
    shape = (1, section.heads, n, section.width // section.heads)
    dtype = getattr(torch, bench.precision)
    q, k, v = torch.randn(3, *shape, device=device).to(dtype).requires_grad_().unbind(0)
    flops = 4 * n**2 * section.width
    kernels = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION") if cuda else ("MATH",)

    def attend(kernel: str | None, back: bool) -> dict[str, Any]:
        with nullcontext() if kernel is None else sdpa_kernel(getattr(SDPBackend, kernel)):
            out = F.scaled_dot_product_attention(q, k, v)

            def run() -> Any:
                if back:
                    return torch.autograd.grad(out, (q, k, v), out, retain_graph=True)
                with torch.no_grad():
                    return F.scaled_dot_product_attention(q, k, v)

            took = measure(run, device, 5)["seconds"]
        return {"ms": 1e3 * took, "TFLOP/s": (2.5 if back else 1) * flops / took / 1e12}

    for kernel in (None, *kernels):
        for back in (False, True):
            what = f"attention, {(kernel or 'by default').lower()}{', backward' if back else ''}"
            yield {"what": what}, lambda kernel=kernel, back=back: attend(kernel, back)


# ---------------------------------------------------------------- parts


def parts(bench: Bench, compiled: bool) -> Rows:
    r"""Networks forward and in training, a state or a window each."""
    world, counts, device = bench.world, bench.counts, bench.device
    model, config = world.model, world.config

    def decode(n: int, way: str) -> dict[str, Any]:
        z, run = world.noisy(1)[0, :n], model.decode
        if way == "compiled":
            run = torch.compile(run, dynamic=False)
        with torch.no_grad(), world.precision():
            if way != "plain":
                return bench.measure(lambda: run(z), counts["decode"], n)
            with world.plainly():
                return bench.measure(lambda: run(z), counts["decode"], n)

    ways = [("plain", 1), ("appa", 1), ("appa", 4), ("appa", min(24, world.window))]
    for way, n in [*ways, *([("compiled", 1), ("compiled", 4)] if compiled else [])]:
        label = {"part": "decoder forward, a state", "way": way, "batch": n}
        yield label, lambda way=way, n=n: decode(n, way)

    def denoise(n: int, way: str) -> dict[str, Any]:
        z, run = world.noisy(n), world.denoise
        if way == "compiled":
            run = torch.compile(run, dynamic=False)
        with torch.no_grad(), world.precision():
            return bench.measure(lambda: run(z), counts["denoise"], n)

    ways = [("appa", 1), ("appa", 4), *([("compiled", 1)] if compiled else [])]
    for way, n in ways:
        label = {"part": "transformer forward, a window", "way": way, "batch": n}
        yield label, lambda way=way, n=n: denoise(n, way)

    def back(n: int, way: str) -> dict[str, Any]:
        z, run = world.noisy(n).requires_grad_(), world.denoise
        if way == "compiled":
            import torch._functorch.config as functorch

            functorch.donated_buffer = False  # buffers outlive a backward pass that is repeated
            run = torch.compile(run, dynamic=False)
        with world.precision():
            mean = run(z)
        v = torch.ones_like(mean)
        return bench.measure(
            lambda: torch.autograd.grad(mean, z, v, retain_graph=True), counts["denoise back"], n
        )

    for way, n in ways:
        label = {"part": "transformer backward, a window", "way": way, "batch": n}
        yield label, lambda way=way, n=n: back(n, way)

    def step(network: str, way: str, n: int) -> dict[str, Any]:
        with torch.device(device):
            build = build_autoencoder if network == "autoencoder" else build_denoiser
            net: Any = build(config, checkpointing=way == "plain").train()
        if network == "autoencoder":
            x = torch.randn(n, *config.state_shape, device=device)
            if way != "plain" and device.type == "cuda":
                net.to(memory_format=torch.channels_last)
                x = x.to(memory_format=torch.channels_last)
            arguments: tuple[Any, ...] = (x,)
        else:
            clock = torch.randn(n, world.window, 4, device=device)
            x = world.noisy(n)
            arguments = (x, torch.ones(n, device=device), clock)

        def loss(*arguments: Any) -> Tensor:
            return (net(*arguments).float() - x).square().mean()

        if way == "compiled":
            loss = torch.compile(loss, dynamic=False)

        def update() -> None:
            with world.precision():
                value = loss(*arguments)
            value.backward()
            net.zero_grad(set_to_none=True)

        return bench.measure(update, counts[f"{network} step"], n)

    for network, unit in (("autoencoder", "state"), ("denoiser", "window")):
        for way in ("plain", "eager", *(["compiled"] if compiled else [])):
            label = {"part": f"{network} training step, a {unit}", "way": way, "batch": 1}
            yield label, lambda network=network, way=way: step(network, way, 1)


def inside(bench: Bench) -> Rows:
    r"""What an evaluation is made of, how often each is done, and what each takes."""
    world, counts, k = bench.world, bench.counts, bench.iterations
    operators = world.operators()
    h = sum(op is not None for op in operators)
    z, z_t = world.noisy(1), world.noisy(1).requires_grad_()

    def row(name: str, times: int, run: Callable[[], Any], flops: float = 0.0) -> Any:
        def measured() -> dict[str, Any]:
            found = bench.measure(run, flops)
            return {"times": times} | found | {"of evaluation": times * found["ms"]}

        return {"part": name}, measured

    def denoise() -> Tensor:
        with world.precision():
            return world.denoise(z_t)

    yield row("denoiser, with its graph", 1, denoise, counts["denoise"])

    def back(mean: list[Tensor]) -> Any:
        return torch.autograd.grad(mean[0], z_t, z, retain_graph=True)

    graph = [denoise()]
    yield row("denoiser, backward", k, lambda: back(graph), counts["denoise back"])
    graph.clear()
    for at_once in AT_ONCE:
        likelihood, done = world.likelihood(operators, at_once), []

        def linearize(likelihood: Any = likelihood, done: list = done) -> Linearized:
            with world.precision():
                found = Linearized(likelihood, z)
            done.append(1)
            return found

        suffix = "" if at_once is None else f", {at_once} hours at once"
        yield row(f"linearize{suffix}", 1, linearize, h * counts["decode"])
        if done:
            break
    release(bench.device)
    at = linearize()
    u = torch.randn_like(at.departure)

    def product() -> Tensor:
        with world.precision():
            return at.A(z)

    yield row("products with A", k, product, h * counts["product"])
    yield row("products with Aᵀ", k, lambda: at.At(u), h * counts["transposed"])
    dx = torch.randn(world.config.state_shape, device=bench.device)[None]

    def gathered() -> list[Tensor]:
        return [op.tangent(dx, dx) for op in operators if op is not None]

    yield row("of which gathering observations", k, gathered)
    yield row("products with L⁻¹", 2 * k, lambda: likelihood.whiten(u))
    yield row("solver's own vectors", 1, lambda: gmres(lambda v: v, u, k))


# ---------------------------------------------------------------- evaluations


def guided(bench: Bench, members: Sequence[int]) -> tuple[Rows, Callable[[list], None]]:
    r"""A guided evaluation, plain and ours, for numbers of members; and what compares the rows."""
    answers: dict[str, Tensor] = {}

    def plain() -> dict[str, Any]:
        world = bench.world
        operators, z_t = world.operators(), world.noisy(1)
        return took("plain", lambda: world.plain(z_t, operators), 1, 1)

    def took(way: str, run: Callable[[], Tensor], m: int, rounds: int) -> dict[str, Any]:
        world = bench.world

        def kept() -> None:
            answer = run()
            if m == 1:
                answers[way] = answer.cpu()

        found = measure(kept, bench.device, rounds)
        return {
            "observations": sum(len(op) for op in world.operators() if op is not None),
            "s": found["seconds"],
            "s a member": found["seconds"] / m,
            "floor s": m * bench.floor(world.window),
            "× floor": found["seconds"] / m / bench.floor(world.window),
            "GiB": found["gibibytes"],
        }

    def ours(m: int, at_once: int | None) -> dict[str, Any]:
        world = bench.world
        likelihood, z_t = world.likelihood(world.operators(), at_once), world.noisy(m)
        return took("appa", lambda: world.appa(z_t, likelihood), m, bench.rounds)

    def single(at_once: int | None) -> dict[str, Any]:
        world = bench.world
        kept, world.dtype = world.dtype, torch.float32
        tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        try:
            likelihood, z_t = world.likelihood(world.operators(), at_once), world.noisy(1)
            start = time.perf_counter()
            answers["single"] = world.appa(z_t, likelihood).cpu()
            answers["mean"] = world.denoise(z_t).detach().cpu()
            return {"s": time.perf_counter() - start}
        finally:
            world.dtype = kept
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32

    def rows() -> Rows:
        yield {"way": "plain", "members": 1}, plain
        for m in members:
            done: list[Any] = []

            def run(m: int, at_once: int | None, done: list = done) -> dict[str, Any]:
                done.append(ours(m, at_once))
                return done[0]

            for at_once in AT_ONCE if m == 1 else AT_ONCE[:1]:
                label = {"way": "appa", "members": m, "hours at once": at_once or "all"}
                yield label, lambda run=run, m=m, at_once=at_once: run(m, at_once)
                if done:
                    break
            if m == 1:  # against which both are compared
                yield {"way": "appa, single precision", "members": 1}, lambda: single(3)

    def finish(found: list[dict[str, Any]]) -> None:
        one = {row["way"]: row["s"] for row in found if row["members"] == 1}
        reference = answers.get("single")
        for row in found:
            way, m = row["way"], row["members"]
            if "plain" in one and "s a member" in row:
                row["× plain"] = one["plain"] / row["s a member"]
            if way == "appa" and "appa" in one:
                row["of one member's"] = row["s"] / one["appa"]
            if m == 1 and way in answers and reference is not None:
                correction = (reference - answers["mean"]).norm()
                row["error"] = float((answers[way] - reference).norm() / correction)

    return rows(), finish


def lengths(bench: Bench, hours: Sequence[int]) -> Rows:
    r"""An evaluation of a trajectory, all of its composed windows guided."""

    def run(length: int) -> dict[str, Any]:
        denoiser, z_t = bench.world.trajectory(length, bench.world.operators())
        with bench.world.precision():
            found = measure(lambda: denoiser.mean(z_t, 1.0), bench.device, max(1, bench.rounds - 1))
        return {
            "windows": denoiser.windows,
            "s": found["seconds"],
            "s a window": found["seconds"] / denoiser.windows,
            "GiB": found["gibibytes"],
        }

    for length in hours:
        yield {"hours": length}, lambda length=length: run(length)


def observed(bench: Bench, counts: Sequence[int], hours: Sequence[int]) -> Rows:
    r"""A guided evaluation against the number of observations, and of hours with any."""

    def run(count: int | None, h: int | None) -> dict[str, Any]:
        world = bench.world
        operators, z_t = world.operators(count, h), world.noisy(1)
        likelihood = world.likelihood(operators)
        found = measure(lambda: world.appa(z_t, likelihood), bench.device, bench.rounds)
        return {
            "observations": len(likelihood.variance),
            "s": found["seconds"],
            "GiB": found["gibibytes"],
        }

    for count in counts:
        yield {"hours": bench.config.window}, lambda count=count: run(count, None)
    for h in hours:
        yield {"hours": h}, lambda h=h: run(None, h)


def profile(bench: Bench, most: int = 20) -> Rows:
    r"""The kernels that an evaluation spends its time in."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    world = bench.world
    likelihood, z_t = world.likelihood(world.operators()), world.noisy(1)
    world.appa(z_t, likelihood)
    cuda = bench.device.type == "cuda"
    activities = [ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]
    with profiled(activities=activities) as found:
        world.appa(z_t, likelihood)
        if cuda:
            torch.cuda.synchronize()

    def own(event: Any) -> float:
        return event.self_device_time_total if cuda else event.self_cpu_time_total

    events = sorted(found.key_averages(), key=own, reverse=True)
    total = sum(own(event) for event in events)
    for event in events[:most]:
        row = {"calls": event.count, "ms": own(event) / 1e3, "of all": own(event) / total}
        yield {"kernel": event.key[:90].replace("|", "/")}, lambda row=row: row


def grids(benches: Sequence[tuple[str, Callable[[], Bench]]]) -> Rows:
    r"""A guided evaluation of one member on several grids, plain and ours."""

    def run(make: Callable[[], Bench]) -> dict[str, Any]:
        bench = make()
        world, h = bench.world, bench.config.window
        operators, z_t = world.operators(), world.noisy(1)
        slow = measure(lambda: world.plain(z_t, operators), bench.device, 1)
        likelihood = world.likelihood(operators)
        fast = measure(lambda: world.appa(z_t, likelihood), bench.device, bench.rounds)
        return {
            "grid": "×".join(map(str, bench.config.grid.shape)),
            "observations": len(likelihood.variance),
            "plain s": slow["seconds"],
            "appa s": fast["seconds"],
            "× plain": slow["seconds"] / fast["seconds"],
            "floor s": bench.floor(h),
            "GiB": fast["gibibytes"],
        }

    for preset, make in benches:
        yield {"preset": preset}, lambda make=make: run(make)


def reanalysis(
    device: torch.device, cases: Sequence[tuple[int, int, dict[str, Any]]], model: str = "planet"
) -> Rows:
    r"""Whole reanalyses of the planet by a trained model, as users call them.

    Arguments:
        device: Where.
        cases: Hours, members and settings of each, which are the model's but for these.
        model: The model.
    """
    loaded = appa.load(model).to(device)
    hours = max(case[0] for case in cases)
    ds = planet_states(loaded.config, hours)
    network = appa.named_network(loaded.grid)
    seen = appa.read_observations(list(appa.observe(ds, network, statistics=statistics())))

    def run(length: int, members: int, settings: dict[str, Any]) -> dict[str, Any]:
        release(device)
        start = time.perf_counter()
        result = loaded.reanalysis(
            seen,
            ds.time.values[0],
            length,
            members=members,
            variables=["2m_temperature"],
            **settings,
        )
        took = time.perf_counter() - start
        memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
        return {
            "products": int(result.attrs["solver_products"]),
            "s": took,
            "s a member and day": took / members / (length / 24),
            "GiB": memory,
        }

    for length, members, settings in cases:
        told = ", ".join(f"{key} {value}" for key, value in settings.items())
        label = {"hours": length, "members": members, "settings": told or "the model's"}
        yield label, lambda case=(length, members, settings): run(*case)
