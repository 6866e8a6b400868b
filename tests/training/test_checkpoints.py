from __future__ import annotations

import itertools
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from appa.errors import AppaError
from appa.training.checkpoints import MANIFEST, STATE, TENSORS, Checkpoints

STATE_SIZE = 1 << 16


def make_state(step: int) -> dict:
    r"""A state every number of which tells the step it is of."""
    x = torch.full((STATE_SIZE,), float(step))
    return {"model": {"weight": x, "bias": x[:7] + 1}, "optimizer": {0: {"step": step}}}


def is_of(state: dict, step: int) -> bool:
    weight, bias = state["model"]["weight"], state["model"]["bias"]
    same = torch.equal(weight, torch.full((STATE_SIZE,), float(step)))
    return same and bool((bias == step + 1).all()) and state["optimizer"] == {0: {"step": step}}


def same(a, b) -> bool:
    r"""Equality of types, values and, for tensors, bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        a, b = (x.detach().reshape(-1).contiguous().view(torch.uint8) for x in (a, b))
        return torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(
            type(i) is type(j) and same(a[i], b[j]) for i, j in zip(a, b, strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return a == b


def test_round_trip(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, generator=generator)
    dtypes = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8"]
    dtypes += ["uint8", "bool"]
    state = {
        "dtypes": {name: (10 * x).to(getattr(torch, name)) for name in dtypes},
        "special": torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-45]),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 5),
        "shared": [x, x, x.T, x[1:], x[:, 2]],
        "parameter": {0: torch.randn(2, generator=generator).double()},
        0: {"int key": 1, -3: True, None: False, "0": ""},
        "tuple": (1, (2.5, [None, ()]), [], {}),
        "set": {3, 1, 2},
        "floats": [0.1, 1e-320, -0.0, math.inf, -math.inf, math.nan],
        "big": 2**80,
        "words": 'éß∂ "quoted"\n/\\',
        "": "empty key",
    }
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    path = checkpoints.save(12, state)
    step, found = checkpoints.latest()
    assert step == 12
    assert same(found, state)
    assert math.copysign(1, found["floats"][2]) == -1
    # The tensors are a plain safetensors file: another reader has the same.
    assert len(load_file(path / TENSORS)) == len(dtypes) + 3 + 5 + 1


def test_tensors_that_shared_memory_come_back_apart(tmp_path):
    x = torch.zeros(4)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, {"a": x, "b": x})
    _, state = checkpoints.latest()
    state["a"] += 1
    assert (state["b"] == 0).all()
    # and what was read does not hang on files that will be removed
    shutil.rmtree(tmp_path)
    assert (state["a"] == 1).all()


def test_an_optimizer_goes_on_bitwise(tmp_path):
    def begin():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.SiLU(), torch.nn.Linear(8, 2))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)

    def advance(model, optimizer, steps):
        for k in steps:
            x = torch.randn(16, 5, generator=torch.Generator().manual_seed(k))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    straight, optimizer = begin()
    advance(straight, optimizer, range(10))

    model, optimizer = begin()
    advance(model, optimizer, range(4))
    Checkpoints(tmp_path).save(
        4, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    )
    model, optimizer = begin()
    step, state = Checkpoints(tmp_path).latest()
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    advance(model, optimizer, range(step, 10))
    assert same(dict(model.state_dict()), dict(straight.state_dict()))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"bytes", "/a/0, bytes"),
        (torch.zeros(2).numpy(), "/a/0, ndarray"),
        (torch.zeros(2, dtype=torch.complex64), "/a/0: torch.complex64"),
        (torch.eye(2).to_sparse(), "sparse"),
        ({(1, 2): 3}, r"the key \(1, 2\) in /a/0"),
        (print, "/a/0, builtin"),
    ],
)
def test_what_cannot_be_held_is_named(tmp_path, value, told):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    with pytest.raises(TypeError, match=told):
        checkpoints.save(0, {"a": [value]})
    assert checkpoints.latest() is None


def test_no_checkpoint(tmp_path):
    assert Checkpoints(tmp_path / "nothing").latest() is None
    assert Checkpoints(tmp_path).steps() == []


def test_the_last_ones_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (0, 5, 10, 100_000_000, 100_000_005):
        checkpoints.save(step, make_state(step))
    assert checkpoints.steps() == [10, 100_000_000, 100_000_005]
    assert checkpoints.latest()[0] == 100_000_005


def flip(path: Path, share: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(share * (len(data) - 1))] ^= 0x10
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


DAMAGES = {
    "flipped byte of a tensor": (lambda p: flip(p / TENSORS), "tensors.safetensors are not those"),
    "flipped byte of a header": (lambda p: flip(p / TENSORS, 0), "tensors.safetensors are not"),
    "flipped last byte": (lambda p: flip(p / TENSORS, 1), "tensors.safetensors are not those"),
    "flipped byte of the state": (lambda p: flip(p / STATE), "state.json are not those"),
    "flipped byte of the manifest": (lambda p: flip(p / MANIFEST, 0), "manifest.json is garbled"),
    "truncated tensors": (lambda p: truncate(p / TENSORS), "bytes, .* were written"),
    "emptied tensors": (lambda p: os.truncate(p / TENSORS, 0), "has 0 bytes"),
    "truncated manifest": (lambda p: truncate(p / MANIFEST), "manifest.json is garbled"),
    "missing tensors": (lambda p: os.remove(p / TENSORS), "tensors.safetensors is missing"),
    "missing state": (lambda p: os.remove(p / STATE), "state.json is missing"),
    "missing manifest": (lambda p: os.remove(p / MANIFEST), "manifest.json is missing"),
    "other manifest": (lambda p: (p / MANIFEST).write_text("[1]"), "manifest.json is garbled"),
    "empty manifest": (lambda p: (p / MANIFEST).write_text("{}"), "manifest.json is garbled"),
    "another step's folder": (
        lambda p: (shutil.rmtree(p), shutil.copytree(p.with_name("step-00000010"), p)),
        "of step 10, its name says 20",
    ),
    "a later format": (
        lambda p: (p / MANIFEST).write_text(
            (p / MANIFEST).read_text().replace('"format": 1', '"format": 7')
        ),
        "format 7, this version reads 1",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_left_out(tmp_path, damage):
    act, told = DAMAGES[damage]
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(10, make_state(10))
    act(checkpoints.save(20, make_state(20)))
    with pytest.warns(UserWarning, match=rf"step-00000020: .*{told}.*; using step 10"):
        step, state = Checkpoints(tmp_path).latest()
    assert step == 10
    assert is_of(state, 10)


def test_every_flipped_byte_is_seen(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"a": torch.zeros(3)})
    path = checkpoints.save(2, {"a": torch.ones(3)})
    for name, k in itertools.product((TENSORS, STATE), range(33)):
        flip(path / name, k / 32)
        with pytest.warns(UserWarning, match=name):
            assert checkpoints.latest()[0] == 1
        flip(path / name, k / 32)
    assert checkpoints.latest()[0] == 2


def test_all_damaged(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (10, 20):
        flip(checkpoints.save(step, make_state(step)) / TENSORS)
    with pytest.raises(AppaError, match=r"(?s)step-00000020.*step-00000010.*remove the folder"):
        checkpoints.latest()


def test_a_damaged_checkpoint_counts_no_more(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(10, make_state(10))
    flip(checkpoints.save(20, make_state(20)) / TENSORS)
    resumed = Checkpoints(tmp_path, keep=2)
    with pytest.warns(UserWarning, match="using step 10"):
        resumed.latest()
    # The same step again, and one before it: neither may cost the whole one at step 10.
    for step in (15, 20):
        resumed.save(step, make_state(step))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found, state = Checkpoints(tmp_path).latest()
        assert found == step
        assert is_of(state, step)
    assert resumed.steps() == [15, 20]


def test_the_same_step_again(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    flip(checkpoints.save(10, make_state(10)) / TENSORS)
    for _ in range(3):
        checkpoints.save(10, make_state(10))
        assert is_of(checkpoints.latest()[1], 10)
    assert len(list(tmp_path.iterdir())) <= 2


def test_leftovers_are_removed(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(10, make_state(10))
    left = tmp_path / "step-00000020-99.partial"
    left.mkdir()
    (left / TENSORS).write_bytes(b"half")
    assert checkpoints.latest()[0] == 10  # and no warning: it was never a checkpoint
    checkpoints.save(30, make_state(30))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000010", "step-00000030"]


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "step-notes.txt").write_text("mine")
    (tmp_path / "README").write_text("mine")
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in range(3):
        checkpoints.save(step, make_state(step))
    assert {p.name for p in tmp_path.iterdir()} == {"step-notes.txt", "README", "step-00000002"}


def test_no_pickle_is_read(tmp_path):
    r"""A pickle that would run code is refused, whatever its manifest says."""
    import hashlib
    import pickle

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "run",))

    checkpoints = Checkpoints(tmp_path / "checkpoints")
    path = checkpoints.save(1, make_state(1))
    data = pickle.dumps(Evil())
    (path / TENSORS).write_bytes(data)
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"][TENSORS] = {
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    (path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(AppaError, match="cannot be read"):
        checkpoints.latest()
    assert not (tmp_path / "run").exists()


def test_killed_at_any_moment(tmp_path):
    r"""Forty processes, each saving without pause until it is killed: nothing is ever lost."""
    draw = random.Random(0)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, make_state(1))
    newest, left = 1, 0
    for _ in range(40):
        child = os.fork()
        if child == 0:
            try:
                for step in range(newest + 1, newest + 10_000):
                    Checkpoints(tmp_path).save(step, make_state(step))
            finally:
                os._exit(1)
        time.sleep(draw.uniform(0.005, 0.05))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        left += any(p.name.endswith(".partial") for p in tmp_path.iterdir())
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing looks damaged either
            step, state = checkpoints.latest()
        assert step >= newest
        assert is_of(state, step)
        newest = step
    assert newest > 1
    assert left > 5  # many were caught in the middle
    checkpoints.save(newest + 1, make_state(newest + 1))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"step-{step:08d}" for step in (newest, newest + 1)
    ]


FILL = """
import sys
sys.path.insert(0, {tests!r})
from appa.errors import AppaError
from appa.training.checkpoints import Checkpoints
from tests.training.test_checkpoints import make_state
import torch
{limit}
checkpoints = Checkpoints(sys.argv[1])
checkpoints.save(1, make_state(1))
try:
    checkpoints.save(2, make_state(2) | {{"more": torch.zeros(1 << 19)}})
except AppaError as error:
    print(error)
    sys.exit(2)
"""


def check_full(done: subprocess.CompletedProcess, held: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert "disk full" in done.stdout
    assert "the last checkpoint, at step 1, is intact" in done.stdout
    assert held == "step-00000001"


def run_fill(command: list[str], limit: str = "") -> subprocess.CompletedProcess:
    root = str(Path(__file__).parents[2])
    script = FILL.format(tests=root, limit=limit)
    env = os.environ | {"OMP_NUM_THREADS": "1", "SCRIPT": script, "PYTHON": sys.executable}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)


def test_full_disk_by_limit(tmp_path):
    r"""The system refuses files above a size, in the middle of a write."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))"
    done = run_fill(["sh", "-c", f'exec "$PYTHON" -c "$SCRIPT" "{tmp_path}"'], limit)
    check_full(done, " ".join(p.name for p in tmp_path.iterdir()))
    step, state = Checkpoints(tmp_path).latest()
    assert step == 1
    assert is_of(state, 1)


def test_full_disk(tmp_path):
    r"""A disk of 1 MB, in a mount namespace of its own."""
    mount = f'mount -t tmpfs -o size=1m none "{tmp_path}"'
    try:
        trial = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if trial.returncode:
        pytest.skip("user namespaces are not allowed here")
    script = (
        f'{mount} && "$PYTHON" -c "$SCRIPT" "{tmp_path}"; code=$?; '
        f'ls "{tmp_path}" > "{tmp_path}.held"; exit $code'
    )
    done = run_fill(["unshare", "-rm", "sh", "-c", script])
    check_full(done, Path(f"{tmp_path}.held").read_text().strip())


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AppaError, match=r"cannot be written to .*there is no earlier one"):
        Checkpoints(tmp_path / "file" / "checkpoints").save(0, {})
