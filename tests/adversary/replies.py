"""Replies of one client that does its worst: crafted headers, changed bytes, wrong records, and lies of every kind."""

import io
import math
import warnings
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from flower.nodes import SUPERLINK, Node, content, evaluated

MAGIC = b"\x93NUMPY"
PAYLOAD = np.arange(4, dtype="<f4").tobytes()
HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\u202eevil\u2028\ud800\U000e0041"


def npy(
    text: str | bytes, payload: bytes = PAYLOAD, version: tuple[int, int] = (1, 0), length: int | None = None
) -> bytes:
    """A serialised array with any header."""
    header = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    wide = 2 if version[0] < 2 else 4
    claimed = len(header) if length is None else length
    return MAGIC + bytes(version) + claimed.to_bytes(wide, "little") + header + payload


def told(descr: str = "'<f4'", order: str = "False", shape: str = "(4,)", end: str = ", }   \n") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}{end}"


def claims(shape: str) -> bytes:
    return npy(told(shape=shape))


def typed(descr: str, payload: bytes = PAYLOAD) -> bytes:
    return npy(told(descr), payload)


# what no reply may contain; NumPy's own reader, or a later reshape, fails on many of these in its own way
CRAFTED: dict[str, bytes] = {
    "nothing": b"",
    "the magic alone": MAGIC,
    "no length": MAGIC + b"\x01\x00",
    "a zip file": b"PK\x03\x04" + npy(told()),
    "version 4.0": npy(told(), version=(4, 0)),
    "length 0": npy(told(), length=0),
    "length 2^32 - 1": npy(told(), version=(2, 0), length=2**32 - 1),
    "header of a megabyte": npy(told(end=", }" + " " * 2**20 + "\n"), version=(2, 0)),
    "an open bracket": npy("("),
    "a call": npy(told(shape="__import__('os').getpid()")),
    "another order of keys": npy("{'shape': (4,), 'fortran_order': False, 'descr': '<f4', }\n"),
    "NUL": npy(told(end=", }\x00\n")),
    "not UTF-8": npy(told().encode()[:-4] + b"\xff\xfe\n", version=(3, 0)),
    "digits of another script": npy(told(shape="(\u0664,)"), version=(3, 0)),
    "shape -4": claims("(-4,)"),
    "shape 2^63": claims(f"({2**63},)"),
    "shape 0, 10^30": npy(told(shape=f"(0, {10**30})"), b""),
    "shape 0, 2^62, 2^62": npy(told(shape=f"(0, {2**62}, {2**62})"), b""),
    "shape of 5,000 digits": npy(told(shape="(" + "9" * 5000 + ",)")),
    "65 dimensions": npy(told(shape="(" + "1, " * 64 + "1)"), PAYLOAD[:4]),
    "more numbers": claims("(3,)"),
    "half a number": npy(told(), PAYLOAD[:-2]),
    "a byte too many": npy(told(), PAYLOAD + b"\x00"),
    "objects": typed("'|O'"),
    "text": typed("'<U1'"),
    "complex": typed("'<c8'", PAYLOAD * 2),
    "a deep structure": typed("[('a', " * 300 + "'<f4'" + ")]" * 300),
    "a subarray": typed("('<f4', (4,))"),
    "native byte order": typed("'=f4'"),
    "float of 10^20 bytes": typed(f"'<f{10**20}'"),
    "integers": typed("'<i4'"),
    "truth values": typed("'|b1'", PAYLOAD[:4]),
    "order 1": npy(told(order="1")),
}  # fmt: skip

# other ways to write an honest array, which are read as such
HARMLESS: dict[str, bytes] = {
    "version 1.0": npy(told()),
    "version 2.0": npy(told(), version=(2, 0)),
    "version 3.0": npy(told(), version=(3, 0)),
    "much padding": npy(told(end=", }" + " " * 3000 + "\n")),
    "no padding": npy(told(end=", }\n")),
    "Fortran's order": npy(told(order="True")),
    "big-endian": typed("'>f4'", np.arange(4, dtype=">f4").tobytes()),
    "float64": typed("'<f8'", np.arange(4, dtype="<f8").tobytes()),
    "big-endian float64": typed("'>f8'", np.arange(4, dtype=">f8").tobytes()),
    "float16": typed("'<f2'", np.arange(4, dtype="<f2").tobytes()),
}

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 10, 2**53, 2**62, -(2**62), 2**64, 10**400, -(10**400), 0.0, -0.0, 5e-324, 1e-300, 1e15, 1e300, -1e300,
    1.7e308, math.nan, math.inf, -math.inf, [], [1], [1.0, 2.0], [math.nan], [1e308] * 50, [10**400],
)  # fmt: skip
KEYS = ("num-examples", "train_loss", "norm_bit", "", "x", HOSTILE, "a" * 10_000, "fedwarden/rejected", "acc")
DTYPES = ("<f2", ">f2", ">f4", "<f8", ">f8", "<i4", ">i8", "|u1", "|b1", "<c8", "<U4")


def raw(data: bytes) -> Array:
    return Array("float32", (4,), "numpy.ndarray", data)


class Fuzzer:
    """One bad reply after the other, from a seed."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def reply(self, message: Message, arrays: dict[str, NDArray[Any]]) -> list[Message]:
        """What a bad node makes of honest arrays when it is asked to train, or of an honest evaluation."""
        if message.metadata.message_type == "evaluate":
            found = evaluated(message)[0].content
            self.pick(self.metrics, self.structure, self.odd_objects)(found)
        else:
            found = content(arrays)
            changes = (self.flip, self.flip, self.flip_head, self.craft, self.resize, self.declare, self.rename,
                       self.retype, self.values, self.metrics, self.structure, self.odd_objects)  # fmt: skip
            self.pick(*changes)(found)
        return self.envelope(message, found)

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def some(self, found: RecordDict) -> tuple[ArrayRecord, str]:
        record = found.array_records["arrays"]
        return record, self.pick(*record)

    def flip(self, found: RecordDict, most: int | None = None) -> None:
        """One to five bytes of one array are others."""
        record, name = self.some(found)
        data = bytearray(record[name].data)
        for _ in range(int(self.rng.integers(1, 6))):
            data[int(self.rng.integers(most or len(data)))] = int(self.rng.integers(256))
        record[name] = Array("float32", tuple(record[name].shape), "numpy.ndarray", bytes(data))

    def flip_head(self, found: RecordDict) -> None:
        self.flip(found, 80)

    def craft(self, found: RecordDict) -> None:
        found.array_records["arrays"]["fc.bias"] = raw(self.pick(*CRAFTED.values()))

    def resize(self, found: RecordDict) -> None:
        record, name = self.some(found)
        data, size = record[name].data, int(self.rng.integers(0, 200))
        record[name] = raw(self.pick(data[:size], data + bytes(size), data[size:], data * 2))

    def declare(self, found: RecordDict) -> None:
        """What an array says of itself beside its bytes."""
        record, name = self.some(found)
        kind = self.pick("float32", "object", HOSTILE, "", "O" * 5000)
        shape = self.pick((4,), (), (-1,), (2**70,), (1,) * 100)
        way = self.pick("numpy.ndarray", "numpy.ndarray", "pickle", HOSTILE, "")
        record[name] = Array(kind, shape, way, record[name].data)

    def rename(self, found: RecordDict) -> None:
        record, name = self.some(found)
        array = record[name] if self.rng.random() < 0.3 else record.pop(name)
        record[self.pick(name, name + " ", HOSTILE, "", "fc.weight", "a" * 5000)] = array

    def retype(self, found: RecordDict) -> None:
        record, name = self.some(found)
        with np.errstate(all="ignore"):
            record[name] = Array(np.asarray(record[name].numpy().astype(self.pick(*DTYPES))))

    def values(self, found: RecordDict) -> None:
        record, name = self.some(found)
        array = np.array(record[name].numpy(), np.float64)
        place = tuple(int(self.rng.integers(s)) for s in array.shape)
        array[place] = self.pick(math.nan, math.inf, -math.inf, 1e308, -1e30, 1e15, 3e38, 1e6)
        with np.errstate(all="ignore"):
            record[name] = Array(np.asarray(array.astype(self.pick("<f4", "<f4", "<f8"))))

    def metrics(self, found: RecordDict) -> None:
        record = found.metric_records["metrics"]
        for _ in range(int(self.rng.integers(1, 4))):
            key = self.pick(*KEYS)
            if self.rng.random() < 0.2:
                record.pop(key, None)
            else:
                record[key] = self.pick(*NUMBERS)

    def structure(self, found: RecordDict) -> None:
        """Records too many, too few, of another type, or under another name."""
        spare = self.pick(MetricRecord({"x": 1}), ConfigRecord({"a": HOSTILE, "b": b"\x00", "c": [1.5]}), ArrayRecord())
        how = int(self.rng.integers(4))
        name = self.pick(*found)
        if how == 0:
            found[self.pick("more", "config", HOSTILE, "")] = spare
        elif how == 1:
            del found[name]
        elif how == 2:
            found[name] = spare
        else:
            record = found[name]
            del found[name]
            found[self.pick("other", HOSTILE, name)] = record

    def odd_objects(self, found: RecordDict) -> None:
        """What no message can carry; a later version of Flower might hand it over."""
        name = self.pick(*found)
        inside = found[name].__dict__["_data"]
        inside[self.pick(*inside, "new", 7, None)] = self.pick(None, "text", b"bytes", object(), {"a": 1}, (1, 2), True)

    def envelope(self, message: Message, found: RecordDict) -> list[Message]:
        """The message around it: mostly as it should be."""
        reply = Message(found, reply_to=message)
        how = int(self.rng.integers(20))
        if how == 0:
            reason = self.pick(HOSTILE, "", "x" * 100_000, None)
            return [Message(Error(int(self.rng.integers(300)), reason), reply_to=message)]
        if how == 1:
            return [reply] * int(self.rng.integers(0, 4))
        if how == 2:
            reply.metadata.__dict__["_src_node_id"] = self.pick(0, -1, 2**64, SUPERLINK, 100, 101)
        if how == 3:
            reply.metadata.__dict__["_reply_to_message_id"] = self.pick("", "m1", "m2", HOSTILE, None, 7, [])
        if how == 4:
            reply.__dict__["_content"] = self.pick(None, {}, "text", ArrayRecord())
        return [reply]


def by_numpy(data: bytes) -> NDArray[Any]:
    """An array as NumPy reads it: the other way to the same numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
        return found


def evaluating(value: dict[str, Any]) -> Node:
    """A node that evaluates with these metrics."""
    return lambda m: [Message(RecordDict({"metrics": MetricRecord({"num-examples": 10, **value})}), reply_to=m)]
