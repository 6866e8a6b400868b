r"""`appa train`: the autoencoder on states, then the denoiser on its latents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["app"]

app = typer.Typer(
    help="Train the autoencoder on states, then the denoiser on its latents.",
    no_args_is_help=True,
)

MACHINE, JOB = "Machine", "Slurm"

StepsOption = Annotated[
    int | None, typer.Option(min=1, help="Updates, instead of the configuration's number.")
]
SeedOption = Annotated[
    int, typer.Option(min=0, help="Another seed, other weights, order and noise.")
]
EveryOption = Annotated[int, typer.Option(min=1, help="Updates between checkpoints.")]
ValidateOption = Annotated[int, typer.Option(min=1, help="Updates between validations.")]
LogOption = Annotated[int, typer.Option(min=1, help="Updates between lines of the log.")]
LoggerOption = Annotated[
    str, typer.Option(help="'tensorboard', 'wandb' or 'none'; log.jsonl is always written.")
]
InitOption = Annotated[
    Path | None, typer.Option(metavar="RUN", help="Begin from the weights of this model folder.")
]
MicroBatchOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Elements on a device at once; gradients accumulate up to the configuration's batch. "
        "By default all of a device's share.",
        rich_help_panel=MACHINE,
    ),
]
StrategyOption = Annotated[
    str,
    typer.Option(
        help="Over several devices: 'ddp', or 'fsdp' for what does not fit on one.",
        rich_help_panel=MACHINE,
    ),
]
CompileOption = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Use torch.compile; by default on CUDA.",
        rich_help_panel=MACHINE,
    ),
]
CheckpointingOption = Annotated[
    bool,
    typer.Option(
        "--checkpointing",
        help="Compute activations twice rather than keep them: less memory, more time.",
        rich_help_panel=MACHINE,
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(help="'cpu' or 'cuda'; by default CUDA if there is.", rich_help_panel=MACHINE),
]
ResidentOption = Annotated[
    bool | None,
    typer.Option(
        "--resident/--streamed",
        help="Keep all data on the device, or read them as they are needed; by default where they "
        "fit.",
        rich_help_panel=MACHINE,
    ),
]
WorkersOption = Annotated[
    int,
    typer.Option(
        min=1,
        help="Threads that read data; a task of a Slurm job has as many cores.",
        rich_help_panel=MACHINE,
    ),
]
SlurmOption = Annotated[
    bool,
    typer.Option(
        "--slurm", help="Submit as a Slurm job, one task for each GPU.", rich_help_panel=JOB
    ),
]
NodesOption = Annotated[int, typer.Option(min=1, help="Nodes.", rich_help_panel=JOB)]
GPUsOption = Annotated[int, typer.Option(min=0, help="GPUs of each node.", rich_help_panel=JOB)]
TimeOption = Annotated[
    str,
    typer.Option(
        help="Time limit of the job, after which it is queued again and goes on.",
        rich_help_panel=JOB,
    ),
]
PartitionOption = Annotated[str | None, typer.Option(help="Partition.", rich_help_panel=JOB)]
AccountOption = Annotated[str | None, typer.Option(help="Account.", rich_help_panel=JOB)]
SbatchOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Another option of sbatch, e.g. qos=high; may be repeated.",
        rich_help_panel=JOB,
    ),
]


@app.command()
def autoencoder(
    preset: Annotated[str, typer.Argument(help="A configuration: a preset or a YAML file.")],
    data: Annotated[
        str, typer.Option(metavar="STORE", help="The store of states: a path, a URL, or 'planet'.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The folder to write; by default runs/ and the preset."),
    ] = None,
    statistics: Annotated[
        Path | None,
        typer.Option(
            help="Statistics of states (appa data statistics); by default those in RUN, else the "
            "bundled ones of a simulated planet, else those of the training split are computed."
        ),
    ] = None,
    steps: StepsOption = None,
    seed: SeedOption = 0,
    every: EveryOption = 1000,
    validate_every: ValidateOption = 1000,
    log_every: LogOption = 50,
    init: InitOption = None,
    logger: LoggerOption = "tensorboard",
    micro_batch: MicroBatchOption = None,
    strategy: StrategyOption = "ddp",
    compile: CompileOption = None,
    checkpointing: CheckpointingOption = False,
    workers: WorkersOption = 4,
    device: DeviceOption = None,
    resident: ResidentOption = None,
    slurm: SlurmOption = False,
    nodes: NodesOption = 1,
    gpus_per_node: GPUsOption = 1,
    time: TimeOption = "24:00:00",
    partition: PartitionOption = None,
    account: AccountOption = None,
    sbatch: SbatchOption = None,
) -> None:
    """Train an autoencoder on a store of states.

    Writes checkpoints, curves, pictures and autoencoder.safetensors to RUN. Killed, it goes on
    from its last checkpoint when the same command is given again. For several devices, put
    'torchrun --nproc-per-node N --no-python' before the command, or give --slurm.

    Example: appa train autoencoder planet --data planet.zarr --out runs/planet
    """
    from ..config import load_config

    config = load_config(preset)
    out = out or Path("runs") / Path(preset).stem
    arguments = {
        "config": config,
        "data": data,
        "out": out,
        "statistics": statistics,
        "steps": steps,
        "seed": seed,
        "every": every,
        "validate_every": validate_every,
        "log_every": log_every,
        "init": init,
        "logger": logger,
        "micro_batch": micro_batch,
        "strategy": strategy,
        "compile": compile,
        "checkpointing": checkpointing,
        "workers": workers,
        "device": device,
        "resident": resident,
    }
    job = (nodes, gpus_per_node, time, partition, account, sbatch) if slurm else None
    _start("autoencoder", out, arguments, job)


@app.command()
def denoiser(
    run: Annotated[Path, typer.Argument(help="The folder of a trained autoencoder.")],
    data: Annotated[
        Path, typer.Option(metavar="LATENTS", help="The store of latents (appa encode).")
    ],
    steps: StepsOption = None,
    seed: SeedOption = 0,
    every: EveryOption = 1000,
    validate_every: ValidateOption = 1000,
    log_every: LogOption = 50,
    init: InitOption = None,
    logger: LoggerOption = "tensorboard",
    micro_batch: MicroBatchOption = None,
    strategy: StrategyOption = "ddp",
    compile: CompileOption = None,
    checkpointing: CheckpointingOption = False,
    workers: WorkersOption = 4,
    device: DeviceOption = None,
    resident: ResidentOption = None,
    slurm: SlurmOption = False,
    nodes: NodesOption = 1,
    gpus_per_node: GPUsOption = 1,
    time: TimeOption = "24:00:00",
    partition: PartitionOption = None,
    account: AccountOption = None,
    sbatch: SbatchOption = None,
) -> None:
    """Train a denoiser on windows of latents.

    Writes checkpoints, curves and denoiser.safetensors to RUN. Killed, it goes on from its last
    checkpoint when the same command is given again.

    Example: appa train denoiser runs/planet --data latents.zarr
    """
    arguments = {
        "run": run,
        "data": data,
        "steps": steps,
        "seed": seed,
        "every": every,
        "validate_every": validate_every,
        "log_every": log_every,
        "init": init,
        "logger": logger,
        "micro_batch": micro_batch,
        "strategy": strategy,
        "compile": compile,
        "checkpointing": checkpointing,
        "workers": workers,
        "device": device,
        "resident": resident,
    }
    job = (nodes, gpus_per_node, time, partition, account, sbatch) if slurm else None
    _start("denoiser", run, arguments, job)


def _start(network: str, run: Path, arguments: dict[str, Any], job: tuple[Any, ...] | None) -> None:
    from ..training.start import start
    from . import Interrupted

    if job is not None:
        _submit(network, run, arguments, *job)
    elif start(network, **arguments).interrupted:
        raise Interrupted


def _submit(
    network: str,
    run: Path,
    arguments: dict[str, Any],
    nodes: int,
    gpus_per_node: int,
    time: str,
    partition: str | None,
    account: str | None,
    sbatch: list[str] | None,
) -> None:
    from ..training.logs import check_logger
    from ..training.slurm import SlurmError, submit
    from ..training.start import intentions, start

    options = {}
    for option in sbatch or []:
        key, equals, value = option.removeprefix("--").partition("=")
        if not (key and equals):
            raise SlurmError(f"--sbatch {option!r} is no KEY=VALUE, such as qos=high")
        options[key.replace("_", "-")] = value
    by_hand = options.keys() & {"cpus-per-task", "cpus-per-gpu"}
    # What is wrong is told now, not by a job an hour later.
    check_logger(arguments["logger"])
    lines = intentions(network, arguments, nodes * max(1, gpus_per_node))
    folder = run / "training" / network / "slurm"
    job = submit(
        start,
        {"network": network, **arguments},
        folder,
        name=f"appa-{run.name}-{network}",
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        cpus_per_task=None if by_hand else arguments["workers"],
        limit=time,
        partition=partition,
        account=account,
        options=options,
    )
    typer.echo("\n".join(lines), err=True)
    typer.echo(f"job {job.job_id} is submitted; it logs to {folder}")
