"""How a kernel is written: `k = Kernel(...)`, values with operators, `with k.loop(n) as p`, register tiles.

A Python `for` unrolls; `with k.loop(n)` makes a loop; nothing else does.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tilewright.ir import arguments, elementary
from tilewright.ir.ops import amd, atomics, core as ops, gpu, hopper, nvidia, pipelines, tma, x86
from tilewright.ir.ops.core import Operation
from tilewright.ir.program import Array, Call, External, Function, If, Load, Loop, Op, Return, Store, While, caller
from tilewright.ir.types import Pointer, Type, f32, i1, i8, i32, i64, number, scalar, vec
from tilewright.ir.values import Recording, Tile, Value, Variable, check_elements

FUSIBLE = frozenset(("mul", "add", "sub", "neg"))


class Kernel(Recording):
    """Records a Function. `params` are types by name.

    Methods that record one instruction are functions of the module that defines it (`ir.ops`), listed here. A kernel
    for the CTAs of a GPU says how they run, a CPU function does not:

    threads         the CTA's shape, a number or (x, y)
    min_ctas        how many CTAs are to share a multiprocessor: the compiler limits registers accordingly
    max_registers   how many registers a thread may have, instead of min_ctas
    cluster         CTAs along x, y and z of the grid that run at once and share their memories; the grid is whole ones
    warp            lanes of a wave on the target: 32, or 64 on AMD's chips
    """

    def __init__(self, name: str, *, threads: int | tuple[int, int] | None = None, min_ctas: int = 1,
                 max_registers: int | None = None, cluster: tuple[int, int, int] = (1, 1, 1), warp: int = 32,
                 result: Any = None, noalias: bool | tuple[str, ...] = True, **params: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a kernel's name must be text, not {name!r}")
        shape, warp = arguments.cta_shape(name, threads), arguments.warp(name, warp)
        if max_registers is not None and min_ctas != 1:
            raise ValueError("max_registers and min_ctas cannot both be given: each limits the registers of a thread")
        if result is not None:
            arguments.parameter("result", result)
        self._begin(Function(
            name, shape, result, noalias=noalias, warp=warp if shape else 1,
            min_ctas=arguments.positive(name, "min_ctas", min_ctas), max_registers=max_registers,
            cluster=arguments.cluster(name, cluster)))
        self.warp = self.function.warp
        for param, type in params.items():
            arguments.parameter(param, type)
            array = Array(param, type.element, type.space) if isinstance(type, Pointer) else None
            self.function.params.append((param, Value(self, type, array=array)))

        self.fuses: bool | None = True  # of the operations that are being recorded: Op.fuses
        self.sharing = ""               # whose row is being recorded: "cta", "warp" (kernels.elementwise), or none
        self._role: pipelines.Role | None = None                        # that is being recorded
        self._mbarriers: tuple[pipelines.Mbarriers, ...] = ()           # declared and not yet initialised

    @property
    def args(self) -> list[Value]: return [value for _, value in self.function.params]

    def _builtin(self, name: str) -> Value:
        return self.function.builtins.setdefault(name, Value(self, i32))

    # ---- what is defined elsewhere: of all targets, of all GPUs, of NVIDIA's, of AMD's, of x86

    abs, sqrt, exp, log, tanh = elementary.abs, elementary.sqrt, elementary.exp, elementary.log, elementary.tanh
    erf, gelu, gelu_tanh = elementary.erf, elementary.gelu, elementary.gelu_tanh
    sigmoid, popcount = elementary.sigmoid, elementary.popcount
    _negate, _divide = elementary.negate, elementary.divide         # by the operators of values
    atomic_load, atomic_store, atomic_add = atomics.load, atomics.store, atomics.add
    atomic_replace, fence = atomics.replace, atomics.fence
    pause, nanosleep = atomics.pause, atomics.nanosleep

    thread, block, block_z = property(gpu.thread), property(gpu.block), property(gpu.block_z)
    grid, cta_shape, cluster_rank = property(gpu.grid), property(gpu.cta_shape), property(nvidia.cluster_rank)
    smem, smem_bytes = gpu.smem, gpu.smem_bytes
    barrier, warp_barrier, fence_device = gpu.barrier, gpu.warp_barrier, gpu.fence_device
    last_kernel = gpu.last_kernel
    lane_xor, warp_sum, uniform, mma = gpu.lane_xor, gpu.warp_sum, gpu.uniform, gpu.mma
    exp2_approximate, reciprocal_approximate = gpu.exp2_approximate, gpu.reciprocal_approximate
    role, mbarriers, init_mbarriers = pipelines.role, pipelines.mbarriers, pipelines.init_mbarriers
    role_barrier = pipelines.role_barrier

    cp_async, cp_async_commit, cp_async_wait = nvidia.cp_async, nvidia.cp_async_commit, nvidia.cp_async_wait
    ldmatrix, stmatrix, round_e4m3 = nvidia.ldmatrix, nvidia.stmatrix, nvidia.round_e4m3
    round_e4m3_4 = nvidia.round_e4m3_4
    round_tf32, round_pair = nvidia.round_tf32, nvidia.round_pair
    fp8_pair, fma_pair = nvidia.fp8_pair, nvidia.fma_pair
    cluster_barrier, cluster_arrive = nvidia.cluster_barrier, nvidia.cluster_arrive
    cluster_wait, of_cta, fetch = nvidia.cluster_wait, nvidia.of_cta, nvidia.fetch

    wgmma, wgmma_fence, wgmma_commit = hopper.wgmma, hopper.wgmma_fence, hopper.wgmma_commit
    wgmma_wait, fence_async = hopper.wgmma_wait, hopper.fence_async
    elect, registers = hopper.elect, hopper.registers
    tma_store, bulk_store, prefetch_map = tma.tma_store, tma.bulk_store, tma.prefetch_map
    bulk_commit, bulk_wait, l2_policy = tma.bulk_commit, tma.bulk_wait, tma.l2_policy

    lds_load, lds_wait, load_transposed = amd.lds_load, amd.lds_wait, amd.load_transposed
    fp8_four = amd.fp8_four
    sched_group, sched_fence, priority = amd.sched_group, amd.sched_fence, amd.priority

    quads, pairs, bf16_pairs, lookup = x86.quads, x86.pairs, x86.bf16_pairs, x86.lookup

    # ---- values

    def _op(self, operation: Operation, type: Any, *operands: Value, array: Array | None = None) -> Value:
        line, fuses = caller(), None
        if operation.name in FUSIBLE and type.is_float and type.kind == "f" and line.of_users:
            fuses = self.fuses
            self.function.fuses |= fuses is not None
        return self._record(Op(operation, operands, (Value(self, type, array=array),), line, fuses)).results[0]

    def _group(self, operation: Operation, types: Sequence[Any], *operands: Value) -> tuple[Value, ...]:
        """An operation with several results."""
        return self._record(Op(operation, operands, tuple(Value(self, t) for t in types), caller())).results

    def _effect(self, operation: Operation, *operands: Value) -> None:
        self._record(Op(operation, operands, (), caller()))

    def _value(self, x: Any, type: Any) -> Value:
        """x as a value of this type: a Python number becomes a constant, i32 widens to i64, nothing else converts."""
        if isinstance(x, Value):
            if x.type is type or x.type == type or (isinstance(type, Pointer) and isinstance(x.type, Pointer)):
                return x
            if x.type == i32 and type == i64:
                return self.cast(x, i64)
            line, kinds = caller(), (type, x.type)
            casts = all(isinstance(t, Type) for t in kinds) and type.length == x.type.length
            remedy = f"; k.cast(x, {type}) converts it" if casts else ""
            raise TypeError(f"{line}: expected {type}, got {x.type}{remedy}\n    {line.text}")
        if isinstance(x, (Tile, Variable)):
            what = "x.get()" if isinstance(x, Variable) else "x[i, j]"
            raise TypeError(f"a variable or tile is registers, not a value: {what} reads one")
        return self.constant(type, x)

    @staticmethod
    def _common(*xs: Any) -> Any:
        """The type of the operation on these, some of which may be Python's numbers."""
        types = [x.type for x in xs if isinstance(x, Value)]
        if not types:
            raise TypeError(f"at least one operand must be a value of the kernel, not all Python numbers, {xs}: "
                            "k.constant(f32, 1.0) makes a value of one")
        return i64 if i64 in types else types[0]

    def _binary(self, operation: Operation, x: Any, y: Any, result: Any = None) -> Value:
        type = self._common(x, y)
        if result is not None and isinstance(type, Type):
            result = vec(result, type.length)
        return self._op(operation, result or type, self._value(x, type), self._value(y, type))

    def constant(self, type: Any, x: Any) -> Value:
        """A Python number as a value; of all addresses only 0, the null pointer, is a constant."""
        return Value(self, type, constant=arguments.constant(type, x))

    def cast(self, x: Any, type: Type) -> Value:
        """x as this type: integers keep their lowest bits, floats are rounded, towards 0 if to integers. What is not
        f32 becomes f32 on its way to and from bf16."""
        number(type)
        if not isinstance(x, Value):
            return self.constant(type, x)
        if x.type == type:
            return x
        if "bf" not in (type.kind, x.type.kind):
            return self._op(ops.CAST, type, x)
        single = vec(f32, type.length)
        if type.kind == "bf":
            return self._op(ops.TO_BF16, type, self.cast(x, single))
        return self.cast(self._op(ops.FROM_BF16, single, x), type)

    def bits_as(self, x: Value, type: Type) -> Value:
        """Reinterpret x's bits as another type of as many bits, such as an i32 as an f32."""
        if (x.type.bits, x.type.length) != (type.bits, type.length):
            raise TypeError(f"bits_as keeps the number of bits and of elements, and {x.type} and {type} differ in them")
        return self._op(ops.BITCAST, type, x)

    def reinterpret(self, x: Value, type: Type) -> Value:
        """Reinterpret x's bits as a vector of another type and length: four i32 as eight f16."""
        if x.type == type:
            return x
        if x.type.bits * x.type.length != type.bits * type.length or 1 in (x.type.bits, type.bits):
            raise TypeError(f"reinterpret keeps the number of bits, and {x.type} and {type} differ in it")
        return self._op(ops.REINTERPRET, type, x)

    def fma(self, a: Any, b: Any, c: Any) -> Value:
        """a*b + c: of floating-point numbers rounded once, of integers modulo 2^bits."""
        type = self._common(a, b, c)
        a, b, c = (self._value(x, type) for x in (a, b, c))
        return self._op(ops.FMA, type, a, b, c) if type.is_float else a*b + c

    def broadcast(self, x: Value, length: int) -> Value: return self._op(ops.BROADCAST, vec(x.type, length), x)
    def pack(self, *xs: Value) -> Value: return self._op(ops.PACK, vec(xs[0].type, len(xs)), *xs)

    def sum(self, x: Value) -> Value:
        """The sum of a vector's elements, by halves."""
        if x.type.length & (x.type.length - 1):
            raise TypeError(f"sum takes vectors of 1, 2, 4, 8 ... numbers, not {x.type}")
        return x if x.type.length == 1 else self._op(ops.SUM, x.type.scalar, x)

    def select(self, where: Value, x: Any, y: Any) -> Value:
        type = self._common(x, y)
        return self._op(ops.SELECT, type, where, self._value(x, type), self._value(y, type))

    def min(self, x: Any, y: Any) -> Value: return self.select(self._binary(ops.LT, x, y, i1), x, y)
    def max(self, x: Any, y: Any) -> Value: return self.select(self._binary(ops.LT, x, y, i1), y, x)

    def fmin(self, x: Any, y: Any) -> Value:
        """The smaller of two floats, where y is a NaN x; x is none. Of 0 and -0 either."""
        return self._binary(ops.FMIN, x, y)

    def fmax(self, x: Any, y: Any) -> Value:
        """The larger of two floats, where y is a NaN x; x is none. Of 0 and -0 either."""
        return self._binary(ops.FMAX, x, y)

    def ceil_div(self, x: Value, y: Any) -> Value: return (x + (y - 1)) // y

    def lanes_below(self, n: Value, length: int) -> Value:
        """A mask of `length` lanes: lane e is on where e < n."""
        return self._op(ops.LANES_BELOW, vec(i1, length), self._value(n, i64))

    def shuffle(self, x: Value, y: Value, indices: Any) -> Value:
        """Elements of x, counted from 0, and of y, counted on from x's length, in this order."""
        check_elements(indices, 2 * x.type.length, f"two {x.type}")
        return self._op(ops.shuffle(tuple(indices)), vec(x.type.scalar, len(indices)), x, y)

    def opaque(self, x: Value) -> Value:
        """x, in a register, with its origin hidden from the optimiser (which would recompute an address per use)."""
        return Value(self, x.type, array=x.array, strides=x.strides, id=self._op(ops.OPAQUE, x.type, x).id)

    def forgotten(self, x: Value) -> Value:
        """Any number, in place of one that is not needed any more: no register keeps it."""
        return self._op(ops.FORGOTTEN, x.type, x)

    def exact(self) -> AbstractContextManager[None]:
        """`with k.exact():` rounds each operation that is recorded in it by itself. Elsewhere a product of floats whose
        only use is a sum or a difference is fused with it (`ir.fma`): a*b + c is one FMA."""
        return self._fusing(False)

    @contextmanager
    def _fusing(self, fuses: bool | None) -> Iterator[None]:
        before, self.fuses = self.fuses, fuses
        try:
            yield
        finally:
            self.fuses = before

    def _fused(self, operation: Operation, *abc: Value) -> Value:
        """A product that is already fused with a sum."""
        self.function.fuses = True
        return self._record(Op(operation, abc, (Value(self, abc[0].type),), caller(), True)).results[0]

    # ---- memory

    def tile(self, rows: int, cols: int, type: Any, zero: bool = True) -> Tile:
        tile = Tile(self, rows, cols, type if isinstance(type, Pointer) else number(type))
        for ij in tile.registers if zero else ():
            tile[ij] = 0
        return tile

    def variable(self, type: Any, value: Any = None) -> Variable:
        return Variable(self, type if isinstance(type, Pointer) else number(type), value)

    def _array(self, name: str, shape: int | tuple[int, ...], element: Type, space: str, align: int) -> Value:
        shape = arguments.shape(name, shape)
        if align < scalar(element).bytes or align & (align - 1):
            raise ValueError(f"{name} can be aligned to {element.bytes}, {2 * element.bytes} ... bytes, not {align}")
        strides = [math.prod(shape[i + 1:]) for i in range(len(shape))]
        array = Array(name, element, space, strides[0] * shape[0], align)
        pointer = Value(self, Pointer(element, space), array=array, strides=tuple(strides))
        self.function.arrays[array] = pointer
        return pointer

    def local(self, name: str, shape: int | tuple[int, ...], element: Type) -> Value:
        """An array on this thread's own stack."""
        return self._array(name, shape, element, "local", 64)

    def load(self, pointer: Value, type: Any = None, align: int | None = None, mask: Value | None = None) -> Value:
        """One element, or a vector of consecutive ones; `align` in bytes, the type's own size unless given.

        Under a mask, one i1 for all of it or a vector with one for each element, what is not read is 0.
        """
        type = type or arguments.pointer(pointer).element
        arguments.mask(mask, type)
        align = arguments.alignment(align, type)
        array = Array("loaded", type.element, type.space) if isinstance(type, Pointer) else None
        return self._record(Load(Value(self, type, array=array), pointer, align, mask, caller())).result

    def store(self, pointer: Value, value: Any, align: int | None = None, mask: Value | None = None,
              streaming: bool = False) -> None:
        """The reverse of `load`. `streaming` is a hint that this is not read soon."""
        element = arguments.pointer(pointer).element
        if not isinstance(value, Value) or value.type == i32:
            value = self._value(value, element)
        if isinstance(value.type, Type) and value.type.scalar != element:
            raise TypeError(f"a {value.type} cannot be stored through a pointer to {element}")
        arguments.mask(mask, value.type)
        align = arguments.alignment(align, value.type)
        self._record(Store(pointer, value, align, mask, caller(), streaming))

    def field(self, struct: Value, offset: int, type: Any) -> Value:
        """The member of this type at `offset` bytes of a C struct."""
        return self.load(struct.as_(i8) + offset, type)

    def prefetch(self, pointer: Value, write: bool = False, locality: int = 3) -> None:
        """Ask for the cache line of an address: into all levels (3), from L2 outwards (2), from L3 outwards (1)."""
        self._effect(ops.prefetch(write, locality), pointer)

    def pointer(self, address: Any, element: Type, space: str = "global") -> Value:
        """An address that Python knows, or an i64, as a pointer."""
        return self._op(ops.POINTER, Pointer(element, space), self._value(address, i64),
                        array=Array("raw", element, space))

    def address(self, pointer: Value) -> Value: return self._op(ops.ADDRESS, i64, pointer)

    def print(self, label: str, *values: Value, when: Value | None = None, most: int = 32) -> None:
        """In the simulator: a line of text for each thread that comes by (and for which `when` holds), with these
        values, up to `most` lines in a run; also in `report.printed`. Compiled code leaves it out."""
        if not isinstance(label, str):
            raise TypeError(f"k.print begins with a label, which is text, not {label!r}")
        condition = () if when is None else (arguments.condition(when),)
        self._effect(ops.show(label, arguments.positive("k.print", "most", most), when is not None),
                     *condition, *values)

    def mark(self, name: str, value: Any) -> None:
        """A name for where a simulated run is, for who observes it: `k.mark("ki", p)`. Compiled code leaves it out."""
        self._effect(ops.mark(name), self._value(value, i64 if isinstance(value, int) else value.type))

    # ---- control

    @contextmanager
    def loop(self, stop: Any, start: Any = 0, step: Any = 1, unroll: bool = True) -> Iterator[Value]:
        """for (index = start; index < stop; index += step)

        LLVM never unrolls it; NVIDIA's assembler likes to, and `unroll=False` forbids it.
        """
        type = next((v.type for v in (stop, start, step) if isinstance(v, Value)), i32)
        index = Value(self, type)
        first, last, by = (self._value(v, type) for v in (start, stop, step))
        loop = Loop(index, first, last, by, [], caller(), unroll)
        self._record(loop)
        with self._into(loop.body, "loop", index):
            yield index

    @contextmanager
    def while_(self, condition: Callable[[], Value]) -> Iterator[None]:
        """`condition` is called once, and what it records is evaluated before every round."""
        head: list = []
        with self._into(head, "while") as scope:
            value = arguments.condition(condition())
        node = self._record(While(head, value, [], caller()))
        scope.open = True                       # each round's body comes after its head
        with self._into(node.body, "while"):
            yield
        scope.open = False

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        node = self._record(If(arguments.condition(condition), [], [], caller()))
        with self._into(node.then, "branch"):
            yield

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        if not self._body or not isinstance(self._body[-1], If):
            raise SyntaxError("k.otherwise() follows a k.when()")
        with self._into(self._body[-1].otherwise, "branch"):
            yield

    def call(self, callee: Function | Value, *operands: Any, result: Any = None) -> Any:
        """Call a recorded function, or the function at an address (whose result type is then given)."""
        if isinstance(callee, Function):
            arguments.count(callee, operands, whole=True)
            values = [self._value(x, value.type) for x, (_, value) in zip(operands, callee.params)]
            result = callee.result
        else:
            values = [x if isinstance(x, Value) else self._value(x, i64) for x in operands]
        return self._call(callee, values, result)

    def call_external(self, name: str, result: Any, *operands: Value, fixed: int | None = None) -> Any:
        """Call a C function of this process by name; `fixed` parameters if it is variadic."""
        return self._call(External(name, fixed), list(operands), result)

    def _call(self, callee: Any, operands: list[Value], result: Any) -> Any:
        array = Array("returned", result.element, result.space) if isinstance(result, Pointer) else None
        value = None if result is None else Value(self, result, array=array)
        self._record(Call(callee, tuple(operands), value, caller()))
        return value

    def ret(self, value: Any = None) -> None:
        """Leave the function. Nothing may be recorded after it in the same block."""
        result = self.function.result
        if (value is None) != (result is None):
            raise TypeError(f"{self.function.name} returns {result or 'nothing'}")
        self._record(Return(None if result is None else self._value(value, result), caller()))
