"""Reading 1: recorded functions become one LLVM module for one target."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import llvmlite
import llvmlite.ir as ll
from llvmlite.ir.instructions import GEPInstr

from tilewright.forks import cached_property
from tilewright.ir import program
from tilewright.ir.dialects import Bfloat, Callee, Dialect, Lines, LoopName, Stack
from tilewright.ir.types import Pointer, TensorMap, Texture, Type
from tilewright.ir.vectors import DEFAULT, Width, vectorised
from tilewright.targets.tensor_maps import ALIGN, BYTES

llvmlite.ir_layer_typed_pointers_enabled = False

_FLOATS = {("f", 16): ll.HalfType, ("f", 32): ll.FloatType, ("f", 64): ll.DoubleType}


def lower(functions: program.Function | Iterable[program.Function], dialect: Dialect, lines: bool = False,
          width: Width = DEFAULT, overlaps: bool = False) -> ll.Module:
    """One module with these functions, which others may call by name, and all that they call, which is internal.

    `lines`: with debug locations, so that a profiler shows the Python line of every instruction. `width`: of the
    vectors that independent rounds become. `overlaps`: kernels may be launched while the one before them ends.
    """
    exported = [functions] if isinstance(functions, program.Function) else list(functions)
    module = ll.Module(exported[0].name)
    module.triple = dialect.triple
    for name, number in dialect.flags:
        error = 1                                               # if modules with another number are linked
        module.add_named_metadata("llvm.module.flags", [ll.Constant(ll.IntType(32), error), name,
                                                        ll.Constant(ll.IntType(32), number)])
    seen: dict[program.Function, None] = {}
    for function in exported:
        seen |= dict.fromkeys(function.callees()) | {function: None}
    for function in seen:
        lowering = _Lowering(module, vectorised(function, width), dialect, function in exported, lines)
        lowering.run(overlaps and function in exported and function.threads is not None)
    return module


class _Lowering:
    """Walks one function once. Operations spell themselves through `b`, `type`, `call`, `splat`, `pack`."""

    def __init__(self, module: ll.Module, function: program.Function, dialect: Dialect, exported: bool, lines: bool
                 ) -> None:
        self.module, self.function, self.dialect, self.spaces = module, function, dialect, dict(dialect.spaces)
        result = ll.VoidType() if function.result is None else self.type(function.result)
        types = [self.type(value.type) for _, value in function.params]
        fn = self.fn = ll.Function(module, ll.FunctionType(result, types), function.name)
        if exported:
            fn.calling_convention = dialect.convention
        else:
            fn.linkage = "internal"
        for attribute in (*dialect.attributes, *(() if exported else dialect.inner)):
            set.add(fn.attributes, attribute)   # set.add: llvmlite refuses attributes that are not on its list
        for attribute in dialect.launched(self, function) if function.threads is not None and exported else ():
            set.add(fn.attributes, attribute)
        self.values: dict[int, Any] = {}
        self.slots: dict[program.Register, Any] = {}
        self.labels = 0
        for arg, (name, value) in zip(fn.args, function.params, strict=True):
            arg.name, self.values[value.id] = name, arg
            disjoint = function.noalias if isinstance(function.noalias, bool) else name in function.noalias
            if disjoint and isinstance(value.type, Pointer):
                arg.add_attribute("noalias")
            elif isinstance(value.type, TensorMap):             # by value, and all threads read it where it is
                set.add(arg.attributes, f'byval([{BYTES} x i8]) align {ALIGN} "nvvm.grid_constant"')
        self.b = ll.IRBuilder(fn.append_basic_block("entry"))
        self.lines = Lines(module, fn, function) if lines else None

    def run(self, overlaps: bool) -> None:
        for name, value in self.function.builtins.items():
            self.values[value.id] = self.dialect.builtin(self, name, value.type)
        for array, pointer in self.function.arrays.items():
            self.values[pointer.id] = self.array(array)
        self.overlaps = overlaps
        if not self.function.early:
            self.overlap()
        body = self.fn.append_basic_block("body")
        self.b.branch(body)
        self.b.position_at_end(body)
        self.block(self.function.body)
        if not self.b.block.is_terminated:
            self.b.ret_void() if self.function.result is None else self.b.unreachable()

    def overlap(self) -> None:
        """Wait for the stream's last kernel, where this one may have begun before its end."""
        if self.overlaps:
            self.dialect.overlap(self)

    @cached_property
    def kinds(self) -> set[str]:
        """The kinds of operations that the function has."""
        return {node.operation.kind for node in self.function.walk() if isinstance(node, program.Op)}

    # ---- spelling

    def type(self, t: Any) -> ll.Type:
        if isinstance(t, Pointer):
            return ll.PointerType(addrspace=self.spaces[t.space])
        if isinstance(t, TensorMap):
            return ll.PointerType()
        if isinstance(t, Texture):
            return ll.IntType(64)                               # its handle
        if t.length > 1:
            return ll.VectorType(self.type(t.scalar), t.length)
        if t.kind == "bf":
            return Bfloat() if self.dialect.gpu else ll.IntType(16)     # what a CPU has no registers for LLVM makes f32
        return ll.IntType(t.bits) if t.kind == "i" else _FLOATS[t.kind, t.bits]()

    def is_float(self, x: Any) -> bool:
        return isinstance(getattr(x.type, "element", x.type), tuple(_FLOATS.values()))

    def bfloats(self, length: int) -> ll.Type: return ll.VectorType(Bfloat(), length)

    def bits(self, x: Any) -> int:
        scalar = getattr(x.type, "element", x.type)
        return getattr(scalar, "width", None) or next(bits for (_, bits), t in _FLOATS.items() if isinstance(scalar, t))

    def struct(self, types: Sequence[Type]) -> ll.LiteralStructType:
        return ll.LiteralStructType([self.type(t) for t in types])

    def nothing(self) -> ll.VoidType: return ll.VoidType()
    def integer(self, bits: int) -> ll.IntType: return ll.IntType(bits)
    def pointer(self, space: int) -> ll.PointerType: return ll.PointerType(addrspace=space)
    def i32(self, n: int) -> ll.Constant: return ll.Constant(ll.IntType(32), n)

    def number(self, n: int, length: int) -> ll.Constant:
        """An i32, or a vector of so many."""
        return self.i32(n) if length == 1 else self.constant([n] * length, 32)

    def constant(self, numbers: Sequence[int], bits: int) -> ll.Constant:
        return ll.Constant(ll.VectorType(ll.IntType(bits), len(numbers)), list(numbers))

    def call(self, intrinsic: str, result: Any, *operands: Any, name: str = "") -> Any:
        t = ll.VoidType() if result is None else result if isinstance(result, ll.Type) else self.type(result)
        f = self.module.globals.get(intrinsic) or ll.Function(
            self.module, ll.FunctionType(t, [x.type for x in operands]), intrinsic)
        return self.b.call(f, operands, name=name)

    def asm(self, text: str, result: ll.Type, constraints: str, *operands: Any, effects: bool = False,
            together: bool = False) -> Any:
        """Inline assembly. `together`: threads execute it together, so it may not move to where some do not come by."""
        t = ll.FunctionType(result, [x.type for x in operands])
        call = self.b.asm(t, text, constraints, operands, effects)
        if together:
            set.add(call.attributes, "convergent")
        return call

    def constant_step(self, pointer: Any) -> int | None:
        """How many bytes a pointer lies behind the one that it is made of; None if that is not a constant."""
        index: Any = pointer.indices[0] if isinstance(pointer, GEPInstr) else None
        width = getattr(pointer.source_etype, "width", None) if isinstance(index, ll.Constant) else None
        return None if width is None else int(index.constant) * width // 8

    def undefined(self, t: Any) -> ll.Value:
        return ll.Constant(self.type(t), ll.Undefined)

    def hidden(self, x: Any) -> Any:
        """x, in a register, with its origin hidden from the optimiser."""
        return self.asm("", x.type, f"={self.dialect.letter(self, x)},0", x)

    def scoped(self, order: str) -> str:
        """An atomic access's order, with whom it is for."""
        return f'syncscope("{self.dialect.scope}") {order}' if self.dialect.scope else order

    def moved(self, value: Any, pointer: Any) -> str:
        """How LLVM names an intrinsic that moves this value through this pointer."""
        return f"{value.type}.p{self.spaces[pointer.type.space]}"

    def pack(self, xs: Sequence[Any], t: Type) -> Any:
        vector = ll.Constant(self.type(t), ll.Undefined)
        for e, x in enumerate(xs):
            vector = self.b.insert_element(vector, x, self.i32(e), name="pack")
        return vector

    def splat(self, x: Any, length: int) -> Any:
        undefined = ll.Constant(ll.VectorType(x.type, length), ll.Undefined)
        first = self.b.insert_element(undefined, x, self.i32(0))
        zeros = ll.Constant(ll.VectorType(ll.IntType(32), length), None)
        return self.b.shuffle_vector(first, undefined, zeros, "splat")

    def horizontal_sum(self, x: Any, t: Type) -> Any:
        while isinstance(x.type, ll.VectorType) and x.type.count > 1:
            half = x.type.count // 2
            low, high = (self.b.shuffle_vector(x, x, self.constant(range(h, h + half), 32)) for h in (0, half))
            x = (self.b.fadd if self.is_float(x) else self.b.add)(low, high, "sum")
        return self.b.extract_element(x, self.i32(0))

    def array(self, array: Any) -> Any:
        t = ll.ArrayType(self.type(array.element), array.size)
        if array.space == "local":
            x = self.stack(t, array.name)
            x.align, x.type = array.align, ll.PointerType(addrspace=self.spaces["local"])   # llvmlite: by its contents
            return x
        dynamic = self.dialect.dynamic and self.function.dynamic_bytes > 0
        name = "shared" if dynamic else f"{self.function.name}_{array.name}"
        g = self.module.globals.get(name)
        if g is None:
            g = ll.GlobalVariable(self.module, ll.ArrayType(ll.IntType(8), 0) if dynamic else t, name, addrspace=3)
            g.align = array.align
            g.type = ll.PointerType(addrspace=self.spaces["shared"])    # as above
            if dynamic:                                         # its size is an argument of the launch
                g.linkage = "external"
            else:
                g.linkage, g.initializer = "internal", ll.Constant(t, ll.Undefined)
        g.align = max(g.align, array.align)                     # of all arrays of all kernels, if it is dynamic
        start = self.function.shared[array] if dynamic else 0
        return self.b.gep(g, [self.i32(start)], name=array.name, source_etype=ll.IntType(8)) if start else g

    def stack(self, t: ll.Type, name: str) -> Any:
        """Room on this thread's own stack."""
        space = self.spaces["local"]
        if space == 0:
            return self.b.alloca(t, name=name)
        x = Stack(self.b.block, t, None, name)
        x.type = ll.PointerType(addrspace=space)
        self.b._insert(x)
        return x

    def slot(self, register: program.Register) -> Any:
        """A register starts as an alloca; LLVM's SROA turns it into SSA, so that no phi is written here."""
        if register not in self.slots:
            with self.b.goto_entry_block():
                self.slots[register] = self.stack(self.type(register.type), "reg")
        return self.slots[register]

    def __getitem__(self, value: Any) -> Any:
        if value.constant is None:
            return self.values[value.id]
        t = self.type(value.type)
        if isinstance(value.type, Pointer):
            return ll.Constant(t, None)
        return ll.Constant(t, [value.constant] * value.type.length if value.type.length > 1 else value.constant)

    # ---- structure

    def label(self, name: str) -> ll.Block: return self.fn.append_basic_block(name)

    def block(self, nodes: list) -> None:
        b = self.b
        for node in nodes:
            if self.lines is not None:
                b.debug_metadata = self.lines[node.line]
            match node:
                case program.Op(operation, operands, results):
                    x = operation.llvm(self, results[0].type if results else None, *(self[x] for x in operands))
                    if len(results) == 1:
                        self.values[results[0].id] = x
                    elif results:
                        for result, y in zip(results, x, strict=True):
                            self.values[result.id] = y
                case program.Load(result, pointer, align, None):
                    load = b.load(self[pointer], typ=self.type(result.type), align=align, name="load")
                    self.values[result.id] = load
                    if pointer.type.space == "shared":
                        self.dialect.shared(self, load)
                case program.Load(result, pointer, align, mask) if mask.type.length == 1:
                    self.values[result.id] = self.predicated(node)
                case program.Load(result, pointer, align, mask):
                    zero = ll.Constant(self.type(result.type), None)
                    self.values[result.id] = self.call(f"llvm.masked.load.{self.moved(result, pointer)}", zero.type,
                                                       self[pointer], self.i32(align), self[mask], zero, name="load")
                case program.Store(pointer, value, align, None) if node.streaming and self.dialect.streamed(self, node):
                    pass
                case program.Store(pointer, value, align, None):
                    store = b.store(self[value], self[pointer], align=align)
                    if node.streaming:
                        store.set_metadata("nontemporal", self.module.add_metadata([self.i32(1)]))
                case program.Store(pointer, value, align, mask) if mask.type.length == 1:
                    with b.if_then(self[mask]):
                        b.store(self[value], self[pointer], align=align)
                case program.Store(pointer, value, align, mask):
                    self.call(f"llvm.masked.store.{self.moved(value, pointer)}", None, self[value], self[pointer],
                              self.i32(align), self[mask])
                case program.Read(result, register):
                    self.values[result.id] = b.load(self.slot(register), typ=self.type(register.type), name="read")
                case program.Write(register, value):
                    b.store(self[value], self.slot(register))
                case program.Loop():
                    self.loop(node)
                case program.While():
                    self.while_(node)
                case program.If():
                    self.branch(node)
                case program.Call():
                    self.call_function(node)
                case program.Return(value):
                    b.ret_void() if value is None else b.ret(self[value])

    def predicated(self, node: program.Load) -> Any:
        """Read all of it or nothing: a branch around the load, which the assembler turns into a predicate."""
        b, before, then, end = self.b, self.b.block, self.label("then"), self.label("end")
        b.cbranch(self[node.mask], then, end)
        b.position_at_end(then)
        t = self.type(node.result.type)
        loaded = b.load(self[node.pointer], typ=t, align=node.align, name="load")
        b.branch(end)
        b.position_at_end(end)
        value = b.phi(t, "load")
        value.add_incoming(loaded, then)
        value.add_incoming(ll.Constant(t, None), before)
        return value

    def loop(self, loop: program.Loop) -> None:
        """Rotated: a guard, then the test at the bottom, so that the body is one block when it has no control flow."""
        b, guard = self.b, self.b.block
        start, stop, step = self[loop.start], self[loop.stop], self[loop.step]
        body, done = self.label("loop"), self.label("done")
        b.cbranch(b.icmp_signed("<", start, stop), body, done)
        b.position_at_end(body)
        index = self.values[loop.index.id] = b.phi(start.type, "index")
        index.add_incoming(start, guard)
        self.block(loop.body)
        following = b.add(index, step, flags=["nsw"], name="next")
        index.add_incoming(following, b.block)
        again = b.cbranch(b.icmp_signed("<", following, stop), body, done)
        if not loop.unroll:
            option = self.module.add_metadata([ll.MetaDataString(self.module, "llvm.loop.unroll.disable")])
            again.set_metadata("llvm.loop", LoopName(self.module, [option], str(len(self.module.metadata))))
        b.position_at_end(done)

    def while_(self, node: program.While) -> None:
        b, head, body, done = self.b, self.label("head"), self.label("body"), self.label("done")
        b.branch(head)
        b.position_at_end(head)
        self.block(node.head)
        b.cbranch(self[node.condition], body, done)
        b.position_at_end(body)
        self.block(node.body)
        if not b.block.is_terminated:
            b.branch(head)
        b.position_at_end(done)

    def branch(self, node: program.If) -> None:
        b, then, end = self.b, self.label("then"), self.label("end")
        otherwise = self.label("else") if node.otherwise else end
        b.cbranch(self[node.condition], then, otherwise)
        for label, nodes in (then, node.then), (otherwise, node.otherwise):
            if nodes or label is then:
                b.position_at_end(label)
                self.block(nodes)
                if not b.block.is_terminated:
                    b.branch(end)
        b.position_at_end(end)

    def call_function(self, node: program.Call) -> None:
        operands = [self[x] for x in node.operands]
        if isinstance(node.callee, program.Function):
            callee = self.module.globals[node.callee.name]
        else:
            result = ll.VoidType() if node.result is None else self.type(node.result.type)
            fixed = node.callee.fixed if isinstance(node.callee, program.External) else None
            types = [x.type for x in (operands if fixed is None else operands[:fixed])]
            t = ll.FunctionType(result, types, var_arg=fixed is not None)
            if isinstance(node.callee, program.External):
                callee = self.module.globals.get(node.callee.name) or ll.Function(self.module, t, node.callee.name)
            else:
                callee = Callee(self[node.callee], t)
        x = self.b.call(callee, operands)
        if node.result is not None:
            self.values[node.result.id] = x
