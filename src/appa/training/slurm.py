r"""Training as a Slurm job.

A job runs one task for each GPU, over any number of nodes, and tells each task its rank as
`torchrun` would. When its time is up, or when it is preempted, it is queued again and goes on from
its last checkpoint: a training may take many times longer than a job may.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import AppaError

__all__ = ["Job", "SlurmError", "minutes", "submit"]

REQUEUES = 1000  # a job that goes on for this long has other problems
# From Slurm 22.05 on, srun takes none of sbatch's cores for a task unless they are told again.
CORES = '[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"'
# A task that fails ends the others, which would wait for it until the job's time is up.
TOGETHER = "--kill-on-bad-exit=1"
PATIENCE = 600  # seconds that Slurm may take to end a job after SIGTERM


class SlurmError(AppaError):
    r"""A job cannot be submitted."""


class Job:
    r"""What each task of a job runs: a training, in a distributed environment.

    Slurm warns a job whose time is nearly up with SIGUSR2, and one that makes room for others with
    SIGTERM or with both. On either the training saves a checkpoint and stops. On SIGUSR2 the job
    is then queued again; SIGTERM also means `scancel`, and what follows is left to Slurm.

    Arguments:
        function: A function of a module, found by its name where the job runs. On SIGTERM it saves
            its work and returns something that is `interrupted`.
        arguments: Its arguments by name.
        delay: The seconds between the warning and the end of the job.
    """

    def __init__(self, function: Callable[..., Any], arguments: Mapping[str, Any], delay: int):
        self.function, self.arguments, self.delay = function, dict(arguments), delay

    def __call__(self) -> None:
        from submitit.helpers import TorchDistributedEnvironment

        # All devices of a node stay visible: a task takes the one of its local rank.
        place = TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
        if place.world_size == place.local_world_size:
            os.environ["MASTER_ADDR"] = "127.0.0.1"  # a node may not know its own name
        requeue: Any = signal.getsignal(signal.SIGUSR2)  # what submitit does on a warning
        warned = False

        def warn(kind: int, frame: Any) -> None:
            nonlocal warned
            warned = True
            # Where the checkpoint takes too long, the last one has to do.
            signal.signal(signal.SIGALRM, lambda *_: requeue(kind, frame))
            signal.alarm(max(1, int(0.8 * self.delay)))
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            os.kill(os.getpid(), signal.SIGTERM)

        signal.signal(signal.SIGUSR2, warn)
        outcome = self.function(**self.arguments)
        signal.alarm(0)
        if getattr(outcome, "interrupted", False):
            if not warned:
                signal.signal(signal.SIGUSR2, requeue)
                time.sleep(PATIENCE)
            requeue(signal.SIGUSR2, None)

    def checkpoint(self) -> Any:
        r"""What runs when the job is queued again: the same, which finds its checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@contextmanager
def quiet_import() -> Iterator[None]:
    r"""Imports of submitit in this leave the program's logging as it was.

    Where submitit sets up its own, the handlers of everybody else are closed, some with the file
    they write to: absl's, which TensorBoard and JAX bring along, close what was stderr.
    """
    before = os.environ.get("SUBMITIT_LOG_LEVEL")
    os.environ["SUBMITIT_LOG_LEVEL"] = "NOCONFIG"
    try:
        yield
    except ImportError as error:
        raise SlurmError(f"submitit is not installed ({error}); pip install submitit") from error
    finally:
        os.environ.pop("SUBMITIT_LOG_LEVEL")
        if before is not None:
            os.environ["SUBMITIT_LOG_LEVEL"] = before


def submit(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    folder: str | Path,
    *,
    name: str = "appa",
    nodes: int = 1,
    gpus_per_node: int = 1,
    tasks_per_node: int | None = None,
    cpus_per_task: int | None = None,
    limit: str = "24:00:00",
    delay: int | None = None,
    partition: str | None = None,
    account: str | None = None,
    options: Mapping[str, str] | None = None,
    cluster: str = "slurm",
) -> Any:
    r"""Submits a job that trains with one task for each GPU.

    Arguments:
        function: What trains, see :class:`Job`.
        arguments: Its arguments by name.
        folder: Where the job writes its logs, on a file system that all nodes share.
        name: The name of the job.
        nodes: The number of nodes.
        gpus_per_node: The number of GPUs of each.
        tasks_per_node: The number of tasks on each, by default one a GPU, or one without GPUs.
        cpus_per_task: The number of cores for each task.
        limit: How long the job may run before it is queued again, as Slurm writes it.
        delay: The seconds before that at which it is warned, by default five minutes, and no more
            than a tenth of the time.
        partition: The partition.
        account: The account.
        options: Other options of `sbatch`, e.g. `{"qos": "high"}`.
        cluster: `"slurm"`, or `"local"` to run the tasks on this machine.

    Returns:
        The job, with its `job_id`.
    """
    with quiet_import():
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError
        from submitit.helpers import clean_env

    folder, allowed = Path(folder).absolute(), minutes(limit)
    delay = delay or max(30, min(300, 6 * allowed))
    if cluster == "slurm" and not (shutil.which("sbatch") and shutil.which("srun")):
        raise SlurmError(
            "there is no Slurm here: sbatch and srun are not found. Submit from a login node of "
            "the cluster, or train on this machine: without --slurm, or with torchrun"
        )
    try:
        executor = submitit.AutoExecutor(
            folder, cluster=cluster, **{f"{cluster}_max_num_timeout": REQUEUES}
        )
        executor.update_parameters(
            name=name,
            nodes=nodes,
            tasks_per_node=tasks_per_node or max(1, gpus_per_node),
            timeout_min=allowed,
        )
        if gpus_per_node:
            executor.update_parameters(gpus_per_node=gpus_per_node)
        if cpus_per_task is not None:
            executor.update_parameters(cpus_per_task=cpus_per_task)
        if cluster == "slurm":
            asked = {"slurm_partition": partition, "slurm_account": account}
            executor.update_parameters(
                **{key: value for key, value in asked.items() if value is not None},
                slurm_signal_delay_s=delay,
                slurm_setup=[CORES],
                slurm_srun_args=[TOGETHER],
                slurm_additional_parameters={"requeue": True, **(options or {})},
            )
        with clean_env():  # a job that submits a job does not hand on its own place
            return executor.submit(Job(function, arguments, delay))
    except (FailedJobError, FailedSubmissionError) as error:
        told = " ".join(str(error).split()) or "it gives no reason"
        raise SlurmError(f"Slurm does not take the job: {told}") from error
    except OSError as error:
        raise SlurmError(f"the job's files cannot be written to {folder} ({error})") from error


def minutes(limit: str) -> int:
    r"""The minutes of a time limit, as Slurm writes it.

    Arguments:
        limit: `minutes`, `hours:minutes:seconds`, `days-hours`, `days-hours:minutes` or
            `days-hours:minutes:seconds`.

    Example:
        >>> minutes("1-12:30:00")
        2190
    """
    found = re.fullmatch(r"(?:(\d+)-(\d+)(?::(\d+))?(?::(\d+))?|(\d+):(\d+):(\d+)|(\d+))", limit)
    if found is None:
        raise SlurmError(
            f"found the time {limit!r}, expected minutes, hours:minutes:seconds or "
            "days-hours:minutes:seconds, e.g. 24:00:00"
        )
    d, dh, dm, ds, h, m, s, only = (int(x or 0) for x in found.groups())
    seconds = 60 * (60 * (24 * d + dh + h) + dm + m + only) + ds + s
    if seconds == 0:
        raise SlurmError(f"found the time {limit!r}, expected more than 0")
    return -(-seconds // 60)
