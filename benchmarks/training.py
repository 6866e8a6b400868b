r"""What does training cost? States and windows per second, memory, and the share of time waiting.

    python benchmarks/training.py [--preset planet] [--minutes 2] [--rounds 1] [--output FILE]

Writes a small store (the bundled planet again and again, on the preset's grid) and one of latents
(noise), and trains the preset's networks on them with fresh weights, each way in a process of its
own: a few updates that do not count, then as many as there is time for.

- plain: single precision (TF32 on CUDA), nothing compiled or recorded, each state or window read
  when it is needed with xarray, `ds.isel(time=...).load()`, and standardized.
- appa, streamed: :class:`appa.training.trainer.Trainer` as `appa train` sets it up on this machine:
  on CUDA the preset's precision, `torch.compile`, and updates recorded as CUDA graphs, on a CPU
  none of these; batches are read ahead.
- appa, resident: the same with all hours in the device's memory.

Optimiser, loss and networks are the same in all. An update is of the preset's batch size on CUDA,
and of 8 elsewhere. The share of time waiting is the host's: on CUDA, where the device works on
meanwhile, it is an upper bound. Memory is the process's largest resident set, and on CUDA the
largest allocation on the device.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from common import machine, peak, planet_states, planet_statistics, write_json

from appa.config import Config, load_config
from appa.data.clock import clock_features
from appa.data.stores import open_store
from appa.data.writing import COORDINATES, StoreWriter, make_template
from appa.progress import progress
from appa.tasks.folders import gather
from appa.training.distribution import distributed
from appa.training.options import Options
from appa.training.tasks import AutoencoderTask, DenoiserTask, Task
from appa.training.trainer import Trainer

NETWORKS = ("autoencoder", "denoiser")
WAYS = ("plain", "appa, streamed", "appa, resident")
# Updates between looks at the clock, and before a measurement: memory is mapped, kernels compiled.
CHUNK = {"cpu": 1, "cuda": 20}


# ---------------------------------------------------------------- stores


def write(folder: Path, config: Config, hours: int) -> None:
    r"""Stores of states and of latents, in the training split."""
    near, data, grid = planet_states(config), config.data, config.grid
    start = np.datetime64(data.splits.period("train").start, "h")
    times = (start + np.arange(hours)).astype("datetime64[ns]")
    template = make_template(
        times,
        grid.latitude,
        grid.longitude,
        data.levels,
        surface=data.surface,
        atmospheric=data.atmospheric,
    )
    with (
        StoreWriter(folder / "states.zarr", template, block=min(24, hours)) as writer,
        progress(len(writer.blocks), "writing states", "blocks") as bar,
    ):
        for i, block in enumerate(writer.blocks):
            hour = np.arange(hours)[block] % near.sizes["time"]
            for name in writer.variables:
                part = near[name].isel(time=hour).load()
                values = xr.Dataset({name: (part.dims, part.values)}, {"time": times[block]})
                writer.write(i, values)
            bar.advance()
        writer.finish()

    shape = config.latent_shape
    blank = np.broadcast_to(np.float32(np.nan), (hours, *shape))
    latents = xr.Dataset(
        {
            "latents": (("time", "channel", "y", "x"), blank),
            "latents_mean": ("channel", np.zeros(shape[0])),
            "latents_std": ("channel", np.ones(shape[0])),
        },
        {"time": ("time", times, COORDINATES["time"])},
    )
    rng = np.random.default_rng(0)
    with StoreWriter(folder / "latents.zarr", latents, block=min(24, hours)) as writer:
        for i, block in enumerate(writer.blocks):
            values = rng.standard_normal((len(times[block]), *shape), dtype=np.float32)
            writer.write(i, xr.Dataset({"latents": (("time", "channel", "y", "x"), values)}))
        writer.finish()


class Plain:
    r"""Batches in random order, each window loaded with xarray when it is its turn."""

    def __init__(self, task: Task, path: Path, batch: int):
        self.task, self.batch = task, batch
        self.ds = xr.open_zarr(path, chunks=None)
        self.rng = np.random.default_rng(0)

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.task.window
        states, clocks = [], []
        for start in self.rng.integers(self.ds.sizes["time"] - window + 1, size=self.batch):
            part = self.ds.isel(time=slice(int(start), int(start) + window)).load()
            if isinstance(self.task, AutoencoderTask):
                states.append(self.task.standardizer.to_tensor(part))
            else:
                states.append(torch.from_numpy(part["latents"].values))
            clocks.append(torch.from_numpy(clock_features(part.time.values)).float())
        device = self.task.device
        return torch.stack(states).to(device), torch.stack(clocks).to(device)


# ---------------------------------------------------------------- measuring


def measure(
    folder: Path, preset: str, network: str, way: str, batch: int | None, seconds: float
) -> dict[str, Any]:
    r"""Trains a network one way for a while."""
    plain = way == "plain"
    with distributed() as ranks:
        cuda = ranks.device.type == "cuda"
        config = settings(load_config(preset), network, batch or (None if cuda else 8), plain)
        torch.manual_seed(0)
        path = folder / ("states.zarr" if network == "autoencoder" else "latents.zarr")
        if network == "autoencoder":
            stats = gather(planet_statistics(config), open_store(path))
            task: Task = AutoencoderTask(config, path, stats)
        else:
            task = DenoiserTask(config, path)
        options = Options(
            compile=False if plain else None, resident=way.endswith("resident"), logger="none"
        )
        trainer = Trainer(task, folder / "run", ranks, options)
        if plain:
            trainer.recordable = False
            trainer.feed = Plain(task, path, trainer.micro)  # pyright: ignore[reportAttributeAccessIssue]

        chunk = CHUNK[ranks.device.type]
        update(trainer, chunk)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        trainer.waited, updates, elapsed = 0.0, 0, 0.0
        while elapsed < seconds:
            elapsed += update(trainer, chunk)
            updates += chunk
        return {
            "network": network,
            "way": way,
            "unit": task.unit,
            "batch": task.settings.batch_size,
            "updates": updates,
            "per_second": updates * task.settings.batch_size / elapsed,
            "waiting": trainer.waited / elapsed,
            "host_gigabytes": peak() / 1e9,
            "device_gigabytes": torch.cuda.max_memory_allocated() / 1e9 if cuda else None,
        }


def update(trainer: Trainer, n: int) -> float:
    r"""Seconds of a number of updates, the device's included."""
    start = time.perf_counter()
    for _ in range(n):
        trainer.advance()
    trainer.losses.clear()  # what is waiting to be logged
    trainer.norms.clear()
    if trainer.ranks.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def settings(config: Config, network: str, batch: int | None, plain: bool) -> Config:
    r"""The configuration with another batch size, and in single precision if plain."""
    change: dict[str, Any] = {} if batch is None else {"batch_size": batch}
    change |= {"precision": "float32"} if plain else {}
    section = getattr(config.training, network).model_copy(update=change)
    training = config.training.model_copy(update={network: section})
    return config.model_copy(update={"training": training})


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--preset", default="planet", help="a configuration")
    parser.add_argument("--minutes", type=float, default=2.0, help="in all, about")
    parser.add_argument("--rounds", type=int, default=1, help="measurements, of which the fastest")
    parser.add_argument("--hours", type=int, default=768, help="states in the store")
    parser.add_argument("--batch", type=int, help="states or windows of an update")
    parser.add_argument("--directory", type=Path, help="where to write stores")
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args(args)

    cases = [(network, way) for network in arguments.networks for way in arguments.ways]
    seconds = 60 * arguments.minutes / (len(cases) * arguments.rounds) / 2  # half prepares
    found: dict[tuple[str, str], list[dict[str, Any]]] = {case: [] for case in cases}
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="appa-training-", dir=arguments.directory) as name,
        ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as pool,
    ):
        folder = Path(name)
        write(folder, load_config(arguments.preset), arguments.hours)
        with progress(arguments.rounds * len(cases), "training", "measurements") as bar:
            # In turn: a machine's speed changes with what else it does.
            for network, way in cases * arguments.rounds:
                job = pool.submit(
                    measure, folder, arguments.preset, network, way, arguments.batch, seconds
                )
                found[network, way].append(job.result())
                bar.advance()
    rows = [fastest(rounds) for rounds in found.values()]
    for row in rows:
        of = [r for r in rows if r["network"] == row["network"] and r["way"] == "plain"]
        row["times_plain"] = row["per_second"] / of[0]["per_second"] if of else None
    result = {"preset": arguments.preset, "machine": machine(), "rows": rows}
    write_json(arguments.output, result)
    print(f"{arguments.preset} on {machine()}\n\n{table(rows)}")


def fastest(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    r"""The fastest round, since other work on a machine only slows, with the speeds of all."""
    best = max(rounds, key=lambda row: row["per_second"])
    return {**best, "rounds": [row["per_second"] for row in rounds]}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| network | batch | way | per second | × plain | waiting | host GB | device GB |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        rate, ratio, device = row["per_second"], row["times_plain"], row["device_gigabytes"]
        cells = (
            row["network"],
            f"{row['batch']}",
            row["way"],
            f"{rate:,.0f} {row['unit']}" if rate >= 100 else f"{rate:.1f} {row['unit']}",
            "" if ratio is None else f"{ratio:.2f}",
            f"{row['waiting']:.1%}",
            f"{row['host_gigabytes']:.2f}",
            "" if device is None else f"{device:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
