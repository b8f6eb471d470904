"""What a GPU would run: kernels, compiled here for one that need not be here, load neighbouring entries together.

A hint that gets lost on the way costs a factor of three to four, and no result changes by it.

python tests/updates/test_device_code.py    the most bytes that one load fetches, by kernel, alignment and type, and how
                                            often sorts of many clients go through shared memory, as JSON
"""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

HOPPER = ("cuda", 90, 32)
CASES = [(16, "float32"), (8, "float32"), (4, "float32"), (16, "bfloat16")]
NUMBERS = {"scale": "fp32", "one": "fp32"} | dict.fromkeys(
    ("n", "origin", "count_groups", "low", "high", "keep"), "i32"
)
MANY = 100  # clients, whose columns two threads sort: 128 values of one thread take minutes to compile
TABLES = ("rows", "groups")


def shapes():
    """What the kernels are compiled with for 50 clients."""
    from fedwarden.updates import gpu

    rows, width, warps = gpu.tile(50)
    edge, step, others = gpu.product_tile(51)
    group = {"ROWS": rows, "WIDTH": width, "GROUP": gpu.GROUP}
    products = {"TILES": 1, "TILE": edge, "WIDTH": step, "GROUP": gpu.GROUP}
    return {
        "survey": ({"num_warps": warps}, {**group, "FOLD": 2, "TWIN": True, "SPREAD": True}),
        "weighted_sum": ({"num_warps": warps}, {**group, "BEFORE": False}),
        "gram": ({"num_warps": others, "num_stages": 1}, products),
    }


def assembly(name, options, constants):
    """A kernel in the GPU's assembly language; every buffer begins at a multiple of 16 bytes, as torch's do."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from fedwarden.updates import triton_kernels, triton_products

    function = getattr(triton_products if name == "gram" else triton_kernels, name)
    signature, values, hints = {}, {}, {}
    for k, parameter in enumerate(function.params):
        if parameter.name in constants:
            signature[parameter.name], values[(k,)] = "constexpr", constants[parameter.name]
        elif parameter.name in NUMBERS:
            signature[parameter.name] = NUMBERS[parameter.name]
        else:
            signature[parameter.name] = "*i64" if parameter.name in TABLES else "*fp32"
            hints[(k,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=function, signature=signature, constexprs=values, attrs=hints)
    return triton.compile(source, target=GPUTarget(*HOPPER), options=options).asm["ptx"]


def widest(text):
    """The most bytes that one instruction loads, of those that fetch entries."""
    found = re.findall(r"ld\.global(?:\.v(\d))?\.b(16|32)\b", text)
    loads = [int(count or 1) * int(bits) // 8 for count, bits in found]
    copies = [int(size, 0) for size in re.findall(r"cp\.async\.c[ag]\.shared\.global .*?, (0x\w+|\d+), ", text)]
    return max(loads + copies)


def measure():
    from fedwarden.updates import gpu

    codes = {str(kind).removeprefix("torch."): code for code, kind in enumerate(gpu.TYPES)}
    return {
        f"{name} {align} {kind}": widest(
            assembly(name, options, {**shape, "BASE": False, "ALIGN": align, "TYPE": codes[kind]})
        )
        for name, (options, shape) in shapes().items()
        for align, kind in CASES
    }


def sorts():
    """How often threads of a sort exchange values through memory that they share; where a thread has all, never."""
    from fedwarden.updates import gpu

    levels, width = gpu.sort_tile(MANY)
    shape = {"LEVELS": levels, "WIDTH": width, "BASE": False, "TYPE": 0}
    options = {"num_warps": gpu.SORT_THREADS // 32}
    return {name: assembly(name, options, shape).count("ld.shared") for name in ("ranked_mean", "nearest_mean")}


if __name__ == "__main__":
    print(json.dumps({"loads": measure(), "sorts": sorts()}))
elif "pytest" in sys.modules:
    import pytest

    @pytest.mark.slow
    @pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
    def test_rows_are_loaded_in_vectors_as_wide_as_their_alignment(tmp_path):
        """Those that begin anywhere are loaded one by one, so that this test can fail."""
        env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
        env.pop("TRITON_INTERPRET", None)
        command = [sys.executable, __file__]  # half a minute; a sort in one thread takes many
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        found = told["loads"]
        assert found == {case: int(case.split()[1]) for case in found}
        assert len(found) == 3 * len(CASES)
        assert min(told["sorts"].values()) > 0
