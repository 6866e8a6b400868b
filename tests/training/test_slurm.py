from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from appa.errors import AppaError
from appa.training.slurm import minutes, submit

ROOT = Path(__file__).parents[2]


def report(folder: str) -> None:
    r"""What a task of a job runs: it says who it is, and sums ranks over all."""
    import torch

    from appa.training.distribution import distributed

    with distributed("cpu") as ranks:
        total = ranks.mean(torch.tensor(float(ranks.rank))) * ranks.world
        told = {"rank": ranks.rank, "world": ranks.world, "sum": total.item()}
    told["local"] = int(os.environ["LOCAL_RANK"])
    told["cores"] = int(os.environ.get("TASK_CORES", "0"))
    (Path(folder) / f"{ranks.rank}.json").write_text(json.dumps(told))


def count(folder: str) -> None:
    r"""What a task runs that says how many cores it has and, without torch, nothing else."""
    (Path(folder) / "cores.txt").write_text(os.environ["TASK_CORES"])


class Outcome:
    interrupted = True


def linger(folder: str) -> Outcome | None:
    r"""A training that stops when it is told to, and is over when it starts for the third time."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    lines = Path(folder) / "starts.txt"
    with open(lines, "a") as file:
        file.write(f"{os.getpid()}\n")
    if len(lines.read_text().splitlines()) == 3:
        return None
    while not told:
        time.sleep(0.01)
    with open(Path(folder) / "saved.txt", "a") as file:
        file.write(f"{os.getpid()}\n")
    return Outcome()


def deaf(folder: str) -> None:
    r"""A training that is too slow to save in time."""
    lines = Path(folder) / "starts.txt"
    with open(lines, "a") as file:
        file.write(f"{os.getpid()}\n")
    if len(lines.read_text().splitlines()) == 1:
        time.sleep(60)


def train_slowly(**arguments: Any) -> Any:
    from appa.training.start import start

    from .commands import slow_down

    slow_down()
    return start(**arguments)


def fail() -> None:
    raise AppaError("the store is missing")


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    r"""Jobs find the functions above by name, as they find those of an installed package."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def wait(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_a_task_for_each_rank(tmp_path):
    job = submit(
        report,
        {"folder": str(tmp_path)},
        tmp_path / "logs",
        gpus_per_node=0,
        tasks_per_node=2,
        cluster="local",
    )
    job.results()
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert told == [{"rank": r, "world": 2, "sum": 1.0, "local": r, "cores": 0} for r in (0, 1)]
    assert {p.suffix for p in (tmp_path / "logs").iterdir()} >= {".out", ".err"}


def test_a_warned_job_saves_and_starts_again(tmp_path):
    job = submit(
        linger, {"folder": str(tmp_path)}, tmp_path / "logs", gpus_per_node=0, cluster="local"
    )
    lines = tmp_path / "starts.txt"
    for n in (1, 2):
        wait(lambda n=n: lines.exists() and len(lines.read_text().splitlines()) == n)
        os.kill(int(lines.read_text().split()[-1]), signal.SIGUSR2)
    job.results()
    started = lines.read_text().split()
    assert len(set(started)) == 3
    assert (tmp_path / "saved.txt").read_text().split() == started[:2]


def test_a_warned_job_that_cannot_save_starts_again_too(tmp_path):
    job = submit(
        deaf,
        {"folder": str(tmp_path)},
        tmp_path / "logs",
        gpus_per_node=0,
        delay=2,
        cluster="local",
    )
    lines = tmp_path / "starts.txt"
    wait(lambda: lines.exists() and lines.read_text().endswith("\n"))
    os.kill(int(lines.read_text()), signal.SIGUSR2)
    job.results()
    assert len(set(lines.read_text().split())) == 2


def test_sigterm_alone_waits_for_slurm(tmp_path):
    r"""It may be `scancel`: the work is saved, and the job is neither over nor queued again."""
    job = submit(
        linger, {"folder": str(tmp_path)}, tmp_path / "logs", gpus_per_node=0, cluster="local"
    )
    lines, saved = tmp_path / "starts.txt", tmp_path / "saved.txt"
    wait(lambda: lines.exists() and lines.read_text().endswith("\n"))
    task = int(lines.read_text())
    os.kill(task, signal.SIGTERM)
    wait(saved.exists)
    time.sleep(0.5)
    assert not job.done()
    os.kill(task, signal.SIGKILL)  # as Slurm does
    wait(job.done)
    assert len(lines.read_text().splitlines()) == 1


@pytest.mark.slow
def test_training_as_a_job(tmp_path):
    r"""Two ranks, preempted in the middle, end with the weights of two that were not, in no job."""
    from appa.training.checkpoints import Checkpoints
    from appa.training.start import start

    from ..processes import ranks
    from .commands import same_weights, write_config, write_latents, write_run

    write_latents(tmp_path)
    write_config(tmp_path)
    options = {"data": str(tmp_path / "latents.zarr"), "steps": 40, "every": 5, "device": "cpu"}
    for name in ("straight", "job"):
        write_run(tmp_path / name, tmp_path / "tiny.yaml")
    where = {"gpus_per_node": 0, "tasks_per_node": 2, "cluster": "local"}

    ranks(partial(start, network="denoiser", run=str(tmp_path / "straight"), **options))

    run = tmp_path / "job"
    arguments = {"network": "denoiser", "run": str(run), **options}
    job = submit(train_slowly, arguments, tmp_path / "logs", **where)
    checkpoints = Checkpoints(run / "training" / "denoiser" / "checkpoints")
    wait(checkpoints.steps)
    tasks = Path(f"/proc/{job.job_id}/task/{job.job_id}/children").read_text().split()
    assert len(tasks) == 2
    for task in tasks:
        os.kill(int(task), signal.SIGUSR2)
    job.results()
    assert "interrupted" in job.stderr()
    assert re.search(r"going on from step \d+\n", job.stderr())
    weights = [tmp_path / name / "denoiser.safetensors" for name in ("straight", "job")]
    assert same_weights(*weights)


def test_a_failed_job_tells_why(tmp_path):
    job = submit(fail, {}, tmp_path / "logs", gpus_per_node=0, cluster="local")
    assert "AppaError: the store is missing" in str(job.exception())


# A Slurm of two shell scripts, which write down what they are given and run it on this machine.
SBATCH = r"""#!/bin/bash
cp "$1" "{folder}/batch.sh"
export SLURM_JOB_ID=4242 SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST="$(hostname)"
export SLURM_NTASKS=$(sed -n 's/#SBATCH --ntasks-per-node=//p' "$1")
export SLURM_CPUS_PER_TASK=$(sed -n 's/#SBATCH --cpus-per-task=//p' "$1")
(bash "$1" > "{folder}/batch.log" 2>&1 &)
echo "Submitted batch job 4242"
"""
SRUN = r"""#!/bin/bash
export TASK_CORES=${SRUN_CPUS_PER_TASK:-1}  # as from Slurm 22.05 on
out="$3" err="$5"; shift 5
while [[ $1 == --* ]]; do echo "$1" >> "{folder}/srun.txt"; shift; done
for task in $(seq 0 $((SLURM_NTASKS - 1))); do
    o="${out//%j/4242}" e="${err//%j/4242}"
    SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NODEID=0 \
        "$@" > "${o//%t/$task}" 2> "${e//%t/$task}" &
done
wait
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN)):
        (folder / name).write_text(text.replace("{folder}", str(folder)))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_what_slurm_is_asked_for(tmp_path, slurm):
    job = submit(
        report,
        {"folder": str(tmp_path)},
        tmp_path / "logs",
        name="train-planet",
        gpus_per_node=2,
        cpus_per_task=3,
        limit="1-12:30:00",
        partition="gpu",
        account="weather",
        options={"qos": "high"},
    )
    assert job.job_id == "4242"
    asked = set(re.findall(r"#SBATCH --(\S+)", (slurm / "batch.sh").read_text()))
    assert asked >= {
        "job-name=train-planet",
        "nodes=1",
        "ntasks-per-node=2",
        "gpus-per-node=2",
        "cpus-per-task=3",
        "time=2190",
        "partition=gpu",
        "account=weather",
        "qos=high",
        "requeue",
        "open-mode=append",
        "signal=USR2@300",
    }
    # and the tasks it starts end together, and find one another
    wait((slurm / "srun.txt").exists)
    assert (slurm / "srun.txt").read_text() == "--kill-on-bad-exit=1\n"
    wait(lambda: all((tmp_path / f"{rank}.json").exists() for rank in (0, 1)))
    wait(lambda: len(list((tmp_path / "logs").glob("*_result.pkl"))) == 2)
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert told == [{"rank": r, "world": 2, "sum": 1.0, "local": r, "cores": 3} for r in (0, 1)]


def test_cores_asked_for_by_hand_reach_the_tasks(tmp_path, slurm):
    submit(
        count,
        {"folder": str(tmp_path)},
        tmp_path / "logs",
        gpus_per_node=0,
        options={"cpus-per-task": "5"},
    )
    wait(lambda: len(list((tmp_path / "logs").glob("*_result.pkl"))) == 1)
    assert (tmp_path / "cores.txt").read_text() == "5"


def test_without_gpus_none_are_asked_for(tmp_path, slurm):
    script = f'#!/bin/bash\ncp "$1" "{slurm}/batch.sh"\necho "Submitted batch job 4242"\n'
    (slurm / "sbatch").write_text(script)
    submit(report, {"folder": str(tmp_path)}, tmp_path / "logs", nodes=4, gpus_per_node=0)
    text = (slurm / "batch.sh").read_text()
    assert "--gpus" not in text
    assert "#SBATCH --nodes=4\n" in text
    assert "#SBATCH --ntasks-per-node=1\n" in text


def test_a_job_that_slurm_refuses(tmp_path, slurm):
    told = "sbatch: error: invalid partition specified: gpuu"
    (slurm / "sbatch").write_text(f"#!/bin/bash\necho '{told}' >&2\nexit 1\n")
    with pytest.raises(AppaError, match=f"does not take the job: {told}"):
        submit(report, {}, tmp_path / "logs", partition="gpuu")


def test_no_slurm(tmp_path):
    if shutil.which("sbatch"):
        pytest.skip("there is a Slurm here")
    with pytest.raises(AppaError, match="no Slurm here"):
        submit(report, {}, tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        # as sbatch's manual has them
        ("90", 90),
        ("24:00:00", 1440),
        ("0:30:01", 31),
        ("2-0", 2880),
        ("1-12:30", 2190),
        ("1-12:30:00", 2190),
    ],
)
def test_time_limits(time, expected):
    assert minutes(time) == expected


@pytest.mark.parametrize("time", ["", "a day", "1h", "-3", "0", "1-", "1:2:3:4"])
def test_what_is_no_time_limit(time):
    with pytest.raises(AppaError, match="found the time"):
        minutes(time)


def test_the_module_is_light():
    r"""Submitting happens on login nodes: nothing heavy is imported for it."""
    script = "import sys, appa.training.slurm; assert not {'torch', 'submitit'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_programs_logging_stays():
    r"""Submitit's own set-up would close the handlers of everybody else, absl's with stderr."""
    script = (
        "import logging\n"
        "from appa.training.slurm import SlurmError, submit\n"
        "class Handler(logging.Handler):\n"
        "    closed = False\n"
        "    def close(self): self.closed = True\n"
        "handler = Handler()\n"
        "try: submit(print, {}, 'logs')\n"
        "except SlurmError as error: assert 'no Slurm' in str(error)\n"
        "assert not handler.closed"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={"PATH": "/nowhere"})
