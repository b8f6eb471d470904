"""Replies whose arrays wait on disk: the same rounds, in less memory, and no disk and no client ends a run."""

import random
import tracemalloc
from gc import collect
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

from fedwarden.core.errors import ConfigError
from fedwarden.flower import Asynchronous, Guarded, spool
from fedwarden.flower.records import view
from fedwarden.guard.warden import Warden

from .nodes import METRICS, LocalGrid, evaluated

LAYERS, SIZE, NODES = 4, 30_000, range(2, 10)
BAD = 5
on_linux = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts open files in /proc")


def model(size=SIZE):
    rng = np.random.default_rng(0)
    return ArrayRecord({f"layer{i}": Array(rng.random(size, np.float32)) for i in range(LAYERS)})


def as_sent(new, dtype):
    """A layer as a client sends it: floats, int8 with a scale, or bfloat16."""
    if dtype == "int8":
        scale = np.abs(new).max() / 127
        return {"": Array(np.rint(new / scale).astype(np.int8)), ".scale": Array(np.asarray(scale, np.float32))}
    if dtype == "bfloat16":
        half = Array((new.view(np.uint32) >> 16).astype(np.uint16))
        half.dtype = "bfloat16"
        return {"": half}
    return {"": Array(new.astype(dtype))}


def nodes(dtypes, bad=None):
    """Nodes that take a common step with noise; every third one's is long enough to be shortened."""

    def node(i):
        rng = np.random.default_rng(i)

        def answer(message):
            if message.metadata.message_type == "evaluate":
                return evaluated(message)
            made = ArrayRecord()
            for name, array in message.content.array_records["arrays"].items():
                step = 0.1 + 0.05 * rng.standard_normal(array.shape, np.float32)
                new = array.numpy() + np.float32(8.0 if i % 3 == 0 else 1.0) * step
                made.update({name + end: part for end, part in as_sent(new, dtypes[i % len(dtypes)]).items()})
            if i == BAD and bad is not None:
                bad(made)
            return [Message(RecordDict({"arrays": made, "metrics": MetricRecord(METRICS)}), reply_to=message)]

        return answer

    return {i: node(i) for i in NODES}


def played(folder, home, dtypes=("float32",), bad=None, rounds=2, warden="auto", **options):
    random.seed(0)  # Flower draws the order of the nodes
    guarded = Guarded(flower.FedAvg(), Warden.preset(warden, secret=1), home=home, spool=folder, **options)
    return guarded, guarded.start(LocalGrid(nodes(dtypes, bad)), model(), num_rounds=rounds, timeout=5)


@pytest.mark.parametrize("options", [{}, {"aggregator": "mean"}, {"aggregator": "median"}, {"warden": "pid_made"}])
@pytest.mark.parametrize("dtypes", [["float32"], ["float16", "float32"], ["int8"], ["bfloat16", "float64"]])
def test_a_round_from_disk_is_the_same_as_one_in_memory(tmp_path, dtypes, options):
    folder = tmp_path / "spool"
    folder.mkdir()
    one, here = played(None, tmp_path / "a", dtypes, **options)
    two, there = played(folder, tmp_path / "b", dtypes, **options)
    assert list(there.arrays) == list(here.arrays)
    for name, array in here.arrays.items():
        np.testing.assert_allclose(there.arrays[name].numpy(), array.numpy(), atol=1e-4)
    np.testing.assert_allclose(two.record.weights, one.record.weights, atol=1e-6)
    assert two.record.excluded == one.record.excluded
    assert not two.record.rejected
    assert list(folder.iterdir()) == []


def broken(change):
    def bad(made):
        array = made["layer1"]
        made["layer1"] = Array(array.dtype, array.shape, array.stype, change(array))

    return bad


def nan(made):
    values = made["layer1"].numpy().copy()
    values[7] = np.nan
    made["layer1"] = Array(values)


BROKEN = {
    "half of the bytes": broken(lambda array: array.data[: len(array.data) // 2]),
    "no bytes": broken(lambda array: b""),
    "a header that promises more": broken(lambda array: array.data.replace(b"(30000,)", b"(99999,)")),
    "an object": broken(lambda array: array.data.replace(b"<f4", b"|O8")),
    "another shape": lambda made: made.__setitem__("layer1", Array(np.zeros((3, 4), np.float32))),
    "a NaN in one block": nan,
    "a path for a name": lambda made: made.__setitem__("../../layer1", made.pop("layer1")),
    "nothing at all": lambda made: made.clear(),
    "too large for the model": lambda made: made.__setitem__("layer1", Array(np.full(SIZE, 1e300))),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_bad_reply_is_rejected_with_its_reason(tmp_path, kind):
    (tmp_path / "spool").mkdir()
    guarded, _ = played(tmp_path / "spool", tmp_path / "home", bad=BROKEN[kind], rounds=1)
    assert [r.client_id for r in guarded.record.rejected] == [str(BAD)]
    used = guarded.record.weights[[c != str(BAD) for c in guarded.record.client_ids]]
    assert len(used) == len(NODES) - 1
    assert used.sum() == pytest.approx(1.0)
    assert {path.name for path in tmp_path.iterdir()} == {"spool", "home"}


def test_a_full_disk_rejects_the_reply_and_the_round_goes_on(tmp_path, monkeypatch):
    class Full:
        """A file on a disk with room for 1.5 layers."""

        def __init__(self, **options):
            self.file, self.left = usual(**options), 6 * SIZE

        def __enter__(self):
            self.file.__enter__()
            return self

        def __exit__(self, *error):
            return self.file.__exit__(*error)

        def write(self, data):
            self.left -= len(data)
            if self.left < 0:
                raise OSError(28, "No space left on device")
            return self.file.write(data)

        def __getattr__(self, name):
            return getattr(self.file, name)

    usual, opened = spool.TemporaryFile, []

    def file(**options):
        opened.append(options)
        return Full(**options) if len(opened) == 3 else usual(**options)  # the first one tries the folder

    monkeypatch.setattr(spool, "TemporaryFile", file)
    guarded, _ = played(tmp_path, tmp_path / "home", rounds=1)
    (rejection,) = guarded.record.rejected
    assert rejection.reason.kind == "not_stored"
    assert "No space left on device" in str(rejection)
    assert len(guarded.record.client_ids) == len(NODES) - 1
    assert guarded.record.weights.sum() == pytest.approx(1.0)


@on_linux
def test_files_have_no_names_and_are_freed_after_the_round(tmp_path):
    (tmp_path / "spool").mkdir()

    def held():
        collect()  # records of Flower refer to themselves
        return Path("/proc/self/maps").read_text().count(str(tmp_path / "spool"))

    _guarded, result = played(tmp_path / "spool", tmp_path / "home")
    assert list((tmp_path / "spool").iterdir()) == []
    assert len(result.train_metrics_clientapp) == 2
    assert held() == 0


def test_a_guard_holds_a_few_models_however_many_clients_there_are(tmp_path):
    """In models of 4 d bytes, with ledger and checkpoints, beyond what Python holds."""

    def peak(many):
        some = {i: node for i, node in nodes(["float32"]).items() if i < 2 + many}
        guarded, size = Guarded(flower.FedAvg(), home=tmp_path / f"{many}", spool=tmp_path), 100_000
        collect()
        tracemalloc.start()
        try:
            guarded.start(LocalGrid(some), model(size), num_rounds=2, timeout=5)
            return tracemalloc.get_traced_memory()[1] / (4 * LAYERS * size)
        finally:
            tracemalloc.stop()

    peak(3)
    assert peak(8) < peak(3) + 2


@pytest.mark.parametrize("base", [flower.FedMedian, flower.QFedAvg])
def test_a_strategy_that_holds_all_replies_is_refused(tmp_path, base):
    base = base(client_learning_rate=0.1) if base is flower.QFedAvg else base()
    with pytest.raises(ConfigError, match="holds all replies in memory"):
        Guarded(base, spool=tmp_path)
    Guarded(base, spool=tmp_path, aggregator="median")


def test_a_folder_that_is_not_there_and_a_buffer_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="folder that can be written to"):
        Guarded(flower.FedAvg(), spool=tmp_path / "gone")
    with pytest.raises(ConfigError, match="replies of one round"):
        Asynchronous(flower.FedAvg(), spool=tmp_path)


def test_a_stored_array_is_a_view_of_its_file(tmp_path):
    reply = Message(RecordDict({"arrays": model()}), 7, "train")
    spool.Spool(tmp_path).keep(reply)
    stored = reply.content.array_records["arrays"]["layer2"]
    assert isinstance(view(stored), np.memmap)
    assert view(stored).ctypes.data % 64 == 0
    assert stored.data == model()["layer2"].data
    np.testing.assert_array_equal(stored.numpy(), model()["layer2"].numpy())
