"""What kernels ask of the machine and numba has no word for: memory by its address, wide registers, a shared counter.

Needs numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray


@intrinsic
def floats(typingctx: Any, address: Any) -> Any:
    """The float32 numbers at an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.uint64), codegen


@intrinsic
def widest(typingctx: Any) -> Any:
    """Let the function that calls this use vectors of 512 bits where the machine has them; LLVM prefers half of that.

    Worth it where most is multiplying what lies in the cache: inner products run 1.7 times as fast on an Intel core.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        attributes = builder.function.attributes
        attributes.add("noinline")  # or it would be a part of a function that does not say so
        if isinstance(attributes, set):  # whose own method refuses attributes with values, which LLVM takes
            set.add(attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _add_one(typingctx: Any, address: Any) -> Any:
    """Add 1 to the int64 at an address, and say what it was before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        return builder.atomic_rmw("add", builder.inttoptr(args[0], word.as_pointer()), ir.Constant(word, 1), "acq_rel")

    return types.int64(types.uint64), codegen


@njit(nogil=True, inline="always")
def take(turn: NDArray[np.int64]) -> int:
    """The next number of a counter (an array of one int64) that threads share: each number is given once."""
    return _add_one(turn.ctypes.data)
