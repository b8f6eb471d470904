"""The inner loops of the kernels are vector code: as compiled for this machine, and for those that it is not.

LLVM compiles for any machine anywhere, and so a kernel that would run one number at a time elsewhere is seen here.
"""

from __future__ import annotations

import re

import pytest

pytest.importorskip("numba")

import llvmlite.binding as llvm
from numba import njit, types
from numba.core import codegen

from fedwarden.updates import compiled

pytestmark = pytest.mark.slow

ROW, SUMS, ROWS = (types.Array(kind, 1, "C") for kind in (types.float32, types.float64, types.uint64))
TILE, TABLE, PAIRS = (types.Array(kind, 2, "C") for kind in (types.float32, types.float64, types.int64))
INT, YES = types.int64, types.boolean
KERNELS = {  # name: (arguments, vector instructions at least)
    "_sums_of_four": ((ROWS, YES, ROW, INT, INT, INT, ROW, ROW, ROW, ROW, SUMS), 12),
    "_distances": ((ROWS, YES, ROW, INT, INT, ROW, SUMS), 4),
    "_products": ((TILE, INT, INT, INT, TABLE), 16),
    "_four_about": ((ROWS, YES, ROW, ROW, INT, INT, INT, ROW, ROW, SUMS, TILE), 12),
    "_add": ((ROWS, ROW, INT, INT, INT, types.float32, ROW), 1),
    "_sort": ((ROWS, types.uint64, INT, INT, PAIRS, TILE), 2),
}
MACHINES = {
    "ARM server": ("aarch64-unknown-linux-gnu", "neoverse-n1"),
    "Apple": ("arm64-apple-macosx", "apple-m1"),
    "Intel, AVX2": ("x86_64-unknown-linux-gnu", "haswell"),
    "Intel, AVX-512": ("x86_64-unknown-linux-gnu", "skylake-avx512"),
}
VECTORS = re.compile(r"^\s+(?:f\w+(?:\.4s\b|\s+v\d+\.4s)|v(?:fn?m(?:add|sub)\w*|mul|add|sub|min|max|cmp\w*)ps\s)", re.M)


@pytest.fixture(scope="module", autouse=True)
def targets():
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@pytest.fixture
def before(monkeypatch):
    """What numba hands to LLVM, before anything of one machine is in it."""
    seen = []
    optimise = codegen.CPUCodeLibrary._optimize_final_module

    def remember(library):
        seen.append(str(library._final_module))
        return optimise(library)

    monkeypatch.setattr(codegen.CPUCodeLibrary, "_optimize_final_module", remember)
    return seen


def without_this_machine(text):
    """Functions of numba's own that are compiled already, as declarations."""

    def declared(found):
        body = found.group(0)
        name = re.search(r'@"?([\w.]+)"?\(', body)
        return body if "@llvm.x86." not in body and "@llvm.aarch64." not in body else f"declare void @{name[1]}(ptr)"

    return re.sub(r"^define [^\n]*\{\n.*?^\}", declared, text, flags=re.M | re.S)


def compiled_for(text, triple, cpu):
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    module = llvm.parse_assembly(re.sub(r"target triple = .*", f'target triple = "{triple}"', text))
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_assembly(module)


def kernel(name):
    found = getattr(compiled, name)
    fast = compiled.FAST if found.targetoptions.get("fastmath") else False
    fresh = njit(nogil=True, fastmath=fast)(found.py_func)
    fresh.compile(KERNELS[name][0])
    return fresh


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_vector_code_on_every_machine(name, before):
    made = kernel(name)
    (here,) = made.inspect_asm().values()
    least = KERNELS[name][1]
    assert len(VECTORS.findall(here)) >= least, "this machine"
    text = without_this_machine(before[-1])
    for machine, (triple, cpu) in MACHINES.items():
        assert len(VECTORS.findall(compiled_for(text, triple, cpu))) >= least, machine


@pytest.mark.parametrize("name", ["_products", "_four_about"])
def test_what_multiplies_most_uses_the_widest_registers(name, before):
    kernel(name)
    made = compiled_for(without_this_machine(before[-1]), *MACHINES["Intel, AVX-512"])
    assert len([line for line in made.splitlines() if VECTORS.match(line) and "zmm" in line]) >= KERNELS[name][1]


def test_a_loop_that_does_not_vectorise_is_seen(before):
    """Each number waits for the one before."""

    def chained(x, out):
        total = x[0]
        for j in range(len(x)):
            total = total * x[j] + out[j]
            out[j] = total

    njit(nogil=True)(chained).compile((ROW, ROW))
    for triple, cpu in MACHINES.values():
        made = compiled_for(without_this_machine(before[-1]), triple, cpu)
        assert not VECTORS.findall(made)
