r"""What one pass costs: the machine at its best, networks forward, back and in training, what a
guided evaluation is made of, and its kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from bench import AT_ONCE, Bench, Rows
from common import matmul, measure, release
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from windows import SIGMA

from appa.diffusion.guidance.linear import Linearized
from appa.solvers import gmres
from appa.tasks.building import build_autoencoder, build_denoiser

__all__ = ["inside", "parts", "profile", "speed"]


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


def parts(bench: Bench, compiled: bool) -> Rows:
    r"""Networks forward and in training, a state or a window each; what is compiled last, which
    takes its time."""
    yield from sorted(_parts(bench, compiled), key=lambda row: row[0]["way"] == "compiled")


def _parts(bench: Bench, compiled: bool) -> Rows:
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

    denoiser = world.precision.denoiser(world.model.denoiser)

    def denoise() -> Tensor:
        return denoiser(z_t, SIGMA, world.clock)

    yield row("denoiser, with its graph", 1, denoise, counts["denoise"])

    def back(mean: list[Tensor]) -> Any:
        return torch.autograd.grad(mean[0], z_t, z, retain_graph=True)

    graph = [denoise()]
    yield row("denoiser, backward", k, lambda: back(graph), counts["denoise back"])
    graph.clear()
    for at_once in AT_ONCE:
        likelihood, done = world.likelihood(operators, at_once), []

        def linearize(likelihood: Any = likelihood, done: list = done) -> Linearized:
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

    yield row("products with A", k, lambda: at.A(z), h * counts["product"])
    yield row("products with Aᵀ", k, lambda: at.At(u), h * counts["transposed"])
    dx = torch.randn(world.config.state_shape, device=bench.device)[None]

    def gathered() -> list[Tensor]:
        return [op.tangent(dx, dx) for op in operators if op is not None]

    yield row("of which gathering observations", k, gathered)
    yield row("products with L⁻¹", 2 * k, lambda: likelihood.whiten(u))
    yield row("solver's own vectors", 1, lambda: gmres(lambda v: v, u, k))


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
        name = event.key.replace("|", "/").replace("at::native::", "").replace("void ", "")
        yield {"kernel": name[:150]}, lambda row=row: row
