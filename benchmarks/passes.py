r"""What one pass costs: the machine at its best, networks forward, back and in training, what a
guided evaluation is made of, and its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from bench import AT_ONCE, Bench, Rows
from common import matmul, measure, release
from steps import make_step
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from windows import SIGMA

from appa.diffusion.guidance.linear import Linearized
from appa.nn import fusing
from appa.solvers import gmres

__all__ = ["inside", "parts", "profile", "speed"]


def speed(bench: Bench) -> Rows:
    r"""What the device does at best: matrices and memory."""
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


def parts(bench: Bench, compiled: bool) -> Rows:
    r"""Networks forward and in training, a state or a window each. What targets are about comes
    first: decoder, also compiled as a whole, transformer, and training steps our way, on CUDA in
    the preset's own precision too. Then kernels of attention, other batches, the plain way, and the
    transformer compiled as a whole, which takes its time."""
    world, counts, config = bench.world, bench.counts, bench.config
    model, most = world.model, min(24, world.window)

    def row(part: str, way: str, n: int, run: Callable[[str, int], dict[str, Any]]) -> Any:
        return {"part": part, "way": way, "batch": n}, lambda: run(way, n)

    def whole(way: str, run: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return torch.compile(run, dynamic=False) if way == "compiled" else run

    def decode(way: str, n: int) -> dict[str, Any]:
        z, run = world.noisy(1)[0, :n], whole(way, model.decode)
        plainly = world.plainly() if way == "plain" else nullcontext()
        with torch.no_grad(), world.precision(), plainly:
            return bench.measure(lambda: run(z), counts["decode"], n)

    def denoise(way: str, n: int) -> dict[str, Any]:
        z, run = world.noisy(n), whole(way, world.denoise)
        with torch.no_grad(), world.precision(), loosely(way):
            return bench.measure(lambda: run(z), counts["denoise"], n)

    def back(way: str, n: int) -> dict[str, Any]:
        z, run = world.noisy(n).requires_grad_(), whole(way, world.denoise)
        if way == "compiled":
            import torch._functorch.config as functorch

            functorch.donated_buffer = False  # buffers outlive a backward pass that is repeated
        with world.precision(), loosely(way):
            mean = run(z)
        v = torch.ones_like(mean)
        return bench.measure(
            lambda: torch.autograd.grad(mean, z, v, retain_graph=True), counts["denoise back"], n
        )

    decoder, forward = "decoder forward, a state", "transformer forward, a window"
    backward = "transformer backward, a window"
    yield row(decoder, "appa", 4, decode)
    yield row(decoder, "appa", 1, decode)
    if compiled:
        yield row(decoder, "compiled", 4, decode)
    yield row(forward, "appa", 1, denoise)
    yield row(forward, "appa", 4, denoise)

    units = {"autoencoder": "state", "denoiser": "window"}

    def step(network: str, way: str, precision: str) -> Any:
        label = {"part": f"{network} training step, a {units[network]}", "way": way, "batch": 1}
        label |= {} if precision == bench.precision else {"precision": precision}

        def run() -> dict[str, Any]:
            made = make_step(config, network, way, precision, bench.device)
            return bench.measure(made, counts[f"{network} step"])

        return label, run

    ours = "appa" if compiled or bench.device.type == "cpu" else "eager"
    for network in units:
        own = getattr(config.training, network).precision
        yield step(network, ours, bench.precision)
        if own != bench.precision and bench.device.type == "cuda":  # a CPU's is single
            yield step(network, ours, own)
    yield row(backward, "appa", 1, back)
    yield from attention(bench)
    yield row(decoder, "appa", most, decode)
    yield row(decoder, "plain", 1, decode)
    if bench.device.type == "cuda":
        yield row(forward, "nothing fused", 1, denoise)
        yield row(backward, "nothing fused", 1, back)
    yield row(backward, "appa", 4, back)
    for network in units:
        yield step(network, "plain", bench.precision)
    if compiled:
        for network in units:
            yield step(network, "eager", bench.precision)
        yield row(forward, "compiled", 1, denoise)
        yield row(backward, "compiled", 1, back)


@contextmanager
def loosely(way: str) -> Iterator[None]:
    r"""Nothing fused, if that is the way."""
    kept = fusing.FUSED
    fusing.FUSED = kept and way != "nothing fused"
    try:
        yield
    finally:
        fusing.FUSED = kept


def attention(bench: Bench) -> Rows:
    r"""Attention of one block as kernels have it, with their error against single precision. By
    default torch chooses: cuDNN's on Hopper and datacenter Blackwell where it is recent enough (up
    to 9.15.0 its results may be wrong for lengths that 128 does not divide, and 128 does not divide
    ours), else flash attention."""
    device, section, n = bench.device, bench.config.denoiser, bench.config.tokens
    shape = (1, n, section.heads, section.width // section.heads)  # as projections give them
    dtype = getattr(torch, bench.precision)
    leaves = [torch.randn(shape, device=device).to(dtype).requires_grad_() for _ in range(3)]
    flops = 4 * n**2 * section.width
    cuda = device.type == "cuda"
    kernels = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION") if cuda else ("MATH",)

    def attend() -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in leaves)
        return F.scaled_dot_product_attention(q, k, v)

    def run(kernel: str | None, back: bool) -> dict[str, Any]:
        with nullcontext() if kernel is None else sdpa_kernel(getattr(SDPBackend, kernel)):
            out = attend()
            g = torch.randn_like(out)
            if back:
                found = bench.measure(
                    lambda: torch.autograd.grad(out, leaves, g, retain_graph=True), 2 * flops
                )
            else:
                with torch.no_grad():
                    found = bench.measure(attend, flops)
        with sdpa_kernel(SDPBackend.MATH):  # of the first head
            q, k, v = (x.detach()[:, :, :1].transpose(1, 2).float() for x in leaves)
            right = F.scaled_dot_product_attention(q, k, v)
        error = (out.detach()[:, :1].float() - right).norm() / right.norm()
        return found | {"error": float(error)}

    for back in (False, True):
        for kernel in (None, *kernels):
            way = "torch's choice" if kernel is None else kernel.lower().replace("_", " ")
            label = {"part": f"attention {'backward' if back else 'forward'}, a block", "way": way}
            yield label | {"batch": 1}, lambda kernel=kernel, back=back: run(kernel, back)


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
