"""Short vectors of numbers in compiled loops, which LLVM keeps in SIMD registers.

LLVM vectorizes long loops by itself, but not loops over 8 units of 8 heads. A vector has a fixed number of entries and
the operators ``+ - * /``. The number of entries is a constant of the loop, a power of two.

The cache of a compiled loop is invalidated only when its own file changes (see `edgewise.kernels.dispatch`). After a
change of this file, clear the cache.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, overload, register_model

INT32 = ir.IntType(32)


class Vector(types.Type):
    """The type of vectors with ``num`` entries."""

    def __init__(self, dtype: Any, num: int):
        self.dtype, self.num = dtype, num
        super().__init__(f"Vector({dtype}, {num})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    """Represents a vector as a vector of LLVM."""

    def __init__(self, manager: Any, vector: Vector):
        super().__init__(manager, vector, ir.VectorType(manager.lookup(vector.dtype).get_value_type(), vector.num))


_instruction = intrinsic(prefer_literal=True)  # the numbers of entries are literals


@_instruction  # type: ignore[untyped-decorator]
def load(typing_context: Any, array: Any, row: Any, column: Any, num: Any) -> Any:
    """Load ``array[row, column : column + num]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = context.get_value_type(signature.return_type)
        return builder.load(_pointer(context, builder, signature, arguments, vector), align=_alignment(array))

    return Vector(array.dtype, num.literal_value)(array, row, column, num), generate


@_instruction  # type: ignore[untyped-decorator]
def store(typing_context: Any, array: Any, row: Any, column: Any, vector: Any) -> Any:
    """Store a vector into ``array[row, column : column + num]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature, arguments, arguments[3].type)
        builder.store(arguments[3], pointer, align=_alignment(array))
        return context.get_dummy_value()

    return types.void(array, row, column, vector), generate


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any, vector: Any) -> Any:
    """Return the address of ``array[row, column]`` as the address of a vector."""
    kind = signature.args[0]
    array = context.make_array(kind)(context, builder, arguments[0])
    index = [
        context.cast(builder, argument, integer, types.intp)
        for argument, integer in zip(arguments[1:3], signature.args[1:3], strict=True)
    ]
    shape, strides = (cgutils.unpack_tuple(builder, part) for part in (array.shape, array.strides))
    address = cgutils.get_item_pointer2(context, builder, array.data, shape, strides, kind.layout, index)
    return builder.bitcast(address, vector.as_pointer())


def _alignment(array: Any) -> int:
    """Return the alignment of an address in bytes, which is that of an entry of the array and not of a vector."""
    return int(array.dtype.bitwidth // 8)


@_instruction  # type: ignore[untyped-decorator]
def fill(typing_context: Any, value: Any, num: Any) -> Any:
    """Return a vector of ``num`` equal entries."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _fill(builder, arguments[0], num.literal_value)

    return Vector(value, num.literal_value)(value, num), generate


@_instruction  # type: ignore[untyped-decorator]
def repeat(typing_context: Any, vector: Any, times: Any) -> Any:
    """Repeat each entry: (a, b) becomes (a, a, b, b) for ``times = 2``."""
    num = vector.num * times.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _shuffle(builder, arguments[0], [k // times.literal_value for k in range(num)])

    return Vector(vector.dtype, num)(vector, times), generate


@_instruction  # type: ignore[untyped-decorator]
def sum_groups(typing_context: Any, vector: Any, num: Any) -> Any:
    """Sum ``num`` groups of consecutive entries: (a, b, c, d) becomes (a + b, c + d) for ``num = 2``."""
    num_groups = num.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        total, size = arguments[0], vector.num // num_groups
        while size > 1:
            half = size // 2
            left = [group * size + k for group in range(num_groups) for k in range(half)]
            right = [k + half for k in left]
            total, size = builder.fadd(_shuffle(builder, total, left), _shuffle(builder, total, right)), half
        return total

    return Vector(vector.dtype, num_groups)(vector, num), generate


@_instruction  # type: ignore[untyped-decorator]
def choose_greater(typing_context: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
    """Return the entries of x where a > b, and those of y elsewhere."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *arguments[:2]), *arguments[2:])

    return x(a, b, x, y), generate


@_instruction  # type: ignore[untyped-decorator]
def scale_integers(typing_context: Any, integers: Any, scale: Any) -> Any:
    """Convert unsigned integers to the dtype of ``scale``, and multiply by it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = builder.uitofp(arguments[0], context.get_value_type(signature.return_type))
        return builder.fmul(numbers, _fill(builder, arguments[1], integers.num))

    return Vector(scale, integers.num)(integers, scale), generate


def _fill(builder: Any, value: Any, num: int) -> Any:
    vector = ir.Constant(ir.VectorType(value.type, num), ir.Undefined)
    return _shuffle(builder, builder.insert_element(vector, value, INT32(0)), [0] * num)


def _shuffle(builder: Any, vector: Any, entries: list[int]) -> Any:
    """Return the entries with the given indices."""
    indices = ir.Constant(ir.VectorType(INT32, len(entries)), entries)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), indices)


def _define_operator(symbol: Callable[[Any, Any], Any], instruction: str) -> None:
    @intrinsic  # type: ignore[untyped-decorator]
    def apply(typing_context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(*arguments, flags=("contract",))  # a product may be fused with a sum

        return a(a, b), generate

    @overload(symbol)  # type: ignore[untyped-decorator]
    def choose(a: Any, b: Any) -> Any:
        def implementation(a: Any, b: Any) -> Any:
            return apply(a, b)

        return implementation if isinstance(a, Vector) and a == b else None


for _symbol, _name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define_operator(_symbol, _name)
