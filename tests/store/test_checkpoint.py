"""Checkpoints: bit for bit, whole or not at all, and nothing in them is ever executed."""

import math
import os
import pickle
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

import fedwarden.core.remembered as remembered
import fedwarden.store.checkpoint as module
from fedwarden.core.remembered import Remembered
from fedwarden.store.checkpoint import CheckpointError, Rows, checkpoint_path, forget, lasting, load, save, saved

FLOATS = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, math.pi]


def bits(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.ndim else tensor.reshape(1).view(torch.uint8)


def assert_same_bits(a, b):
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(bits(a), bits(b))
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same_bits(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same_bits(x, y)
    else:
        assert type(a) is type(b)
        assert repr(a) == repr(b)  # NaN is NaN, and -0.0 is not 0.0


def numbers(dtype):
    if dtype.is_floating_point:
        return torch.tensor([0.1, -0.0, math.nan, math.inf, -math.inf, 1e-7, 3.0]).to(dtype)
    return torch.tensor([0, 1, 1, 0, 1, 0, 1]).to(dtype)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.uint8, torch.bool,
    ],
)  # fmt: skip
def test_tensors_come_back_bit_for_bit(dtype, tmp_path):
    tree = {"a": numbers(dtype), "empty": numbers(dtype)[:0], "zero-dimensional": numbers(dtype)[0].clone()}
    save(tmp_path / "x", tree)
    assert_same_bits(load(tmp_path / "x"), tree)


def test_tensors_are_written_where_they_lie_but_for_those_that_share_memory(tmp_path):
    class Called(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    names, x = [], torch.arange(6.0)
    with Called():
        save(tmp_path / "file", {"a": x, "b": torch.ones(3), "a again": x, "part": x[2:]})
    assert names.count("aten.clone.default") == 2
    found = load(tmp_path / "file")
    assert [found[key].tolist() for key in ("a", "a again", "part")] == [[0, 1, 2, 3, 4, 5]] * 2 + [[2, 3, 4, 5]]


def test_nested_trees_come_back(tmp_path):
    shared = torch.arange(6.0)
    tree = {
        "round": 3,
        "large": 2**62,
        "text": 'ü ☃ \\ " \n',
        "none": None,
        "flags": [True, False],
        "floats": FLOATS,
        "odd": [math.nan, math.inf, -math.inf],
        "deep": [{"a": [shared, {"b": shared[::2]}]}, [[]], {}],
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "same": shared,
        "needs grad": torch.ones(2, requires_grad=True).detach(),
    }
    save(tmp_path / "x", tree)
    assert_same_bits(load(tmp_path / "x"), tree)


def test_what_json_has_no_word_for(tmp_path):
    """Tuples come back as lists and keys as text; what a warden keeps is made of neither."""
    save(tmp_path / "x", {"a": (1, (2,)), 3: 4, "grad": torch.ones(1, requires_grad=True)})
    found = load(tmp_path / "x")
    assert (found["a"], found["3"]) == ([1, [2]], 4)
    assert not found["grad"].requires_grad


def fail(*args, **kwargs):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(("owner", "step"), [(os, "replace"), (module, "save_file"), (os, "fsync")])
def test_a_write_that_fails_leaves_the_old_file(owner, step, tmp_path, monkeypatch):
    path, old = tmp_path / "x", {"a": torch.arange(4.0)}
    save(path, old)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, fail)
        with pytest.raises(OSError, match="No space left"):
            save(path, {"a": torch.zeros(9)})
    assert path.read_bytes() == before
    save(path, {"a": 2})
    assert load(path) == {"a": 2}


def test_what_cannot_be_saved_leaves_the_old_file(tmp_path):
    path = tmp_path / "x"
    save(path, {"a": 1})
    with pytest.raises(TypeError):
        save(path, {"a": object()})
    assert load(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["x"]


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_nothing_is_unpickled(how, tmp_path):
    trap = tmp_path / "trap"
    if how == "torch":
        torch.save({"a": Evil(trap)}, tmp_path / "x")
    else:
        (tmp_path / "x").write_bytes(pickle.dumps(Evil(trap)))
    with pytest.raises(CheckpointError):
        load(tmp_path / "x")
    assert not trap.exists()


@pytest.mark.parametrize("fault", ["missing", "no tree", "not json"])
def test_a_file_that_cannot_be_read(fault, tmp_path):
    path = tmp_path / "x"
    save(path, {"a": torch.arange(1000.0)})
    match fault:
        case "missing":
            path.unlink()
        case "no tree":
            save_file({"0": torch.ones(1)}, path)
        case "not json":
            save_file({"0": torch.ones(1)}, path, metadata={"tree": "{"})
    with pytest.raises(CheckpointError, match=f"cannot read the checkpoint {path}"):
        load(path)


def test_what_is_remembered_of_clients_has_no_size_limit(tmp_path):
    """Neither does the header of a safetensors file, of at most 100 MB, hold it, nor a name of any length."""
    tree = {"odd": {"x" * 10_000_000: 1.0}, "seen": Remembered.of({"y" * 10_000_000: (1.0, 2.0)})}
    save(tmp_path / "x", tree)
    assert load(tmp_path / "x") == tree
    assert int.from_bytes((tmp_path / "x").read_bytes()[:8], "little") < 1000


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True), st.booleans()), max_size=6))
def test_every_checkpoint_has_its_own_rows_whatever_comes_after_it(rounds):
    """Clients come, are seen again and are forgotten; a round that is tried again begins where it began."""
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(remembered, "MOST", 5)
        rows, seen, want = Rows(), Remembered(), []
        for t, (clients, forgets) in enumerate(rounds):
            seen.updated(clients, [[-1.0] * len(clients)])  # is not seen again
            seen = seen.updated(clients, [[t + ord(c) / 7 for c in clients]])
            seen = seen.restored({}, clients[:1]) if forgets else seen
            save(Path(place) / f"round-{t}.safetensors", {"seen": seen, "again": [seen]}, "", rows)
            want.append((seen, dict(seen)))
        for t, (state, plain) in enumerate(want):
            found = load(Path(place) / f"round-{t}.safetensors")
            assert dict(found["seen"]) == dict(found["again"][0]) == dict(state) == plain
            assert found["seen"].many == state.many


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=120))
def test_going_back_by_k_rounds_loses_at_most_k_more_whatever_rounds_have_a_checkpoint(steps):
    kept, newest = [], 0
    for step in steps:
        newest += step
        kept = lasting([newest, *kept])
        for t in range(newest + 1):
            lost = t - max((mine for mine in kept if mine <= t), default=0)
            assert lost <= max(newest - t, max(steps) - 1)  # a run with a checkpoint in every round: at most k
        assert len(kept) <= 2 * math.log2(newest) + 1
    made = [newest, newest - steps[-1]]
    assert kept[:2] == made[: len(kept[:2])]  # the last two, whatever came before


def test_every_checkpoint_that_is_kept_has_its_rows(tmp_path):
    """Each server that starts again, here before every fourth round, begins a file of rows."""
    seen = Remembered()
    for t in range(1, 41):
        rows = Rows() if t % 4 == 1 else rows  # noqa: F821
        seen = seen.updated([str(t % 7)], [[float(t)]])
        save(checkpoint_path(tmp_path, 1, t), {"t": t, "seen": seen}, "", rows)
        forget(tmp_path, 1, t)
        for mine, path in saved(tmp_path, 1).items():
            assert load(path)["t"] == mine
    assert list(saved(tmp_path, 1)) == [40, 39, 38, 36, 32, 24, 16]
    assert len(saved(tmp_path, 1, "rows")) <= 7
