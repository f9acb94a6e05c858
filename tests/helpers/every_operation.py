"""Every operation of `ir/` on every type, a small kernel each: a gate must refuse it, or LLVM be able to spell it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tilewright.atoms.nvidia import TABLE, mma
from tilewright.atoms.wgmma import SharedMatrix, Wgmma
from tilewright.ir import (
    Function,
    Kernel,
    TensorMap,
    Texture,
    Type,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
    ptr,
    vec,
)
from tilewright.ir.ops.tma import POLICIES

SCALARS = (i1, i8, i16, i32, i64, f16, bf16, f32, f64)
LENGTHS = (1, 2, 3, 4, 8, 16)
ORDERS = ("monotonic", "acquire", "release", "acq_rel", "seq_cst")


def arithmetic(k: Kernel, x: Any, y: Any, T: Type) -> dict[str, Callable[[], Any]]:
    """What two values of a type can become."""
    found: dict[str, Callable[[], Any]] = {
        "constant": lambda: x + 1.5 if T.is_float else x - 1,
        "add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y,
        "lt": lambda: k.select(x < y, x, y), "le": lambda: k.select(x <= y, x, y),
        "eq": lambda: k.select(x == y, x, y), "ne": lambda: k.select(x != y, x, y),
        "min": lambda: k.min(x, y), "max": lambda: k.max(x, y),
    }
    if T.bits > 1:
        found |= {"neg": lambda: -x, "abs": lambda: abs(x)}
    if T.is_float:
        found |= {"fmin": lambda: k.fmin(x, y), "fmax": lambda: k.fmax(x, y)}
        found |= {"fma": lambda: k.fma(x, y, x), "divide": lambda: x / y, "sqrt": lambda: k.sqrt(x)}
        if T.length == 1:           # expressions of operations that are here in all lengths
            found |= {"exp": lambda: k.exp(x), "log": lambda: k.log(x), "tanh": lambda: k.tanh(x)}
        whole = {16: i16, 32: i32, 64: i64}[T.bits]
        found |= {"bits": lambda: k.bits_as(k.bits_as(x, vec(whole, T.length)), T)}
        if not T.length & (T.length - 1):
            found |= {"sum": lambda: k.sum(x)}
    else:
        found |= {"div": lambda: x // y, "rem": lambda: x % y, "and": lambda: x & y, "or": lambda: x | y,
                  "xor": lambda: x ^ y, "shl": lambda: x << y, "shr": lambda: x >> y}
        if T.bits > 1:
            found |= {"popcount": lambda: k.popcount(x)}
    for other in SCALARS:
        found[f"cast_{other}"] = lambda other=other: k.cast(x, vec(other, T.length))
    if T.scalar == i32 and T.length in (4, 8, 16):
        floats = vec(f32, T.length)
        found |= {"quads": lambda: k.quads(x, y, x), "pairs": lambda: k.pairs(x, y, x),
                  "bf16_pairs": lambda: k.bits_as(k.bf16_pairs(x, y, k.bits_as(x, floats)), T)}
    if T.length == 1:
        found |= {"pack": lambda: k.pack(x, y), "pack3": lambda: k.pack(x, y, x), "splat": lambda: k.broadcast(x, 4),
                  "wide": lambda: k.broadcast(x, 32), "opaque": lambda: k.opaque(x)}
        if T.bits in (16, 32, 64):
            found["lane"] = lambda: k.lane_xor(x, 1)
        if T == f32:
            found["exp2"] = lambda: k.exp2_approximate(x)
            found["reciprocal_near"] = lambda: k.reciprocal_approximate(x)
    else:
        found |= {"extract": lambda: x[T.length - 1], "opaque": lambda: k.opaque(x),
                  "shuffle": lambda: k.shuffle(x, y, range(T.length - 1, 2 * T.length - 1))}
    return found


def accesses(k: Kernel, p: Any, n: Any, T: Type) -> dict[str, Callable[[], Any]]:
    """How a value of a type can be read and written."""
    def again(**how: Any) -> None:
        k.store(p + 16, k.load(p, T, **how), **how)

    def through(other: Any) -> None:
        k.store(other, k.load(p, T, T.scalar.bytes), T.scalar.bytes)
        k.store(p, k.load(other, T, T.scalar.bytes), T.scalar.bytes)

    found: dict[str, Callable[[], Any]] = {
        "moved": again,
        "crooked": lambda: again(align=T.scalar.bytes),
        "predicated": lambda: again(mask=n < 3),
        "streamed": lambda: k.store(p, k.load(p + 16, T), streaming=True),
        "shared": lambda: through(k.smem("s", (32,), T.scalar) + n),
        "dynamic": lambda: through(k.smem("s", ((56 << 10) // T.scalar.bytes,), T.scalar) + n),
        "cluster": lambda: through(_cluster(k).of_cta(k.smem("s", (32,), T.scalar), n) + n),
        "local": lambda: through(k.local("l", (32,), T.scalar) + n),
        "register": lambda: k.store(p, k.variable(T, k.load(p, T)).get()),
    }
    if T.length > 1:
        mask = k.lanes_below(k.cast(n, i64), T.length)
        found |= {"masked": lambda: again(mask=mask), "masked_crooked": lambda: again(mask=mask, align=T.scalar.bytes)}
    elif T.bits > 1:
        one = k.args[3]
        if T.bits in (8, 16):
            found["transposed"] = lambda: k.store(p, k.load_transposed(k.smem("s", (256,), T) + n))
        for order in ORDERS:
            found[f"add_{order}"] = lambda order=order: k.store(p, k.atomic_add(p, one, order))
            if not T.is_float:
                found[f"replace_{order}"] = lambda order=order: k.atomic_replace(p, one, one, order)
        for order in ("monotonic", "acquire", "seq_cst"):
            found[f"load_{order}"] = lambda order=order: k.store(p, k.atomic_load(p, order))
        for order in ("monotonic", "release", "seq_cst"):
            found[f"store_{order}"] = lambda order=order: k.atomic_store(p, one, order)
        found["shared_add"] = lambda: k.atomic_add(k.smem("s", (32,), T.scalar) + n, one, "monotonic")
        found["cluster_add"] = lambda: k.atomic_add(_cluster(k).of_cta(k.smem("s", (32,), T.scalar), n), one)
        found["parameter"] = lambda: k.store(p, one)
    return found


def helper() -> Function:
    k = Kernel("helper", x=f32, p=ptr(f32), result=f32)
    x, p = k.args
    k.ret(x * p[1])
    return k.function


def others(k: Kernel, p: Any, n: Any) -> dict[str, Callable[[], Any]]:
    """What has no type to go through."""
    found: dict[str, Callable[[], Any]] = {
        "barrier": k.barrier, "warp_barrier": k.warp_barrier, "pause": k.pause, "nanosleep": k.nanosleep,
        "fence_device": k.fence_device,
        "ret": k.ret, "cluster_barrier": lambda: _cluster(k).cluster_barrier(),
        "cluster_rank": lambda: k.store(p, k.cast(_cluster(k).cluster_rank, f32)),
        "commit": k.cp_async_commit, "wait": lambda: k.cp_async_wait(2),
        "external": lambda: k.call_external("malloc", i64, k.cast(n, i64)),
        "address": lambda: k.call(k.pointer(k.address(p), i8), n, result=i32),
        "call": lambda: k.store(p, k.call(helper(), p[0], p)),
        "builtins": lambda: k.store(p, k.cast(k.thread[1] + k.block[1] + k.block_z + k.grid[0] + k.grid[1], f32)),
        "pointer": lambda: k.store(k.pointer(k.address(p), f32), 1.0),
        "table": lambda: k.store(k.load(p.as_(i64), ptr(f32)), 1.0),
        "field": lambda: k.store(p, k.field(p, 8, f32)),
        "while": lambda: _while(k, p),
        "rolled": lambda: _rolled(k, p, n),
    }
    for locality in (1, 2, 3):
        found[f"prefetch{locality}"] = lambda locality=locality: k.prefetch(p, locality=locality)
    found["prefetch_shared"] = lambda: k.prefetch(k.smem("s", (8,), f32))
    for order in ORDERS[1:]:
        found[f"fence_{order}"] = lambda order=order: k.fence(order)
    for size in (4, 8, 16):
        found[f"copy{size}"] = lambda size=size: k.cp_async(k.smem("s", (8,), f32), p, size)
        found[f"copy_some{size}"] = lambda size=size: k.cp_async(k.smem("s", (8,), f32), p, size, n)
    for (a, *_), sums, shapes, _ in TABLE:
        atom = mma(a, a, sums[-1], *shapes[-1])
        found[atom.name.replace(".", "_")] = lambda atom=atom: _mma(k, atom, p)
    for count in (1, 2, 4):
        found[f"ldmatrix{count}"] = lambda count=count: k.store(
            p.as_(i32), k.ldmatrix(k.smem("s", (256,), i16), count, count == 2)[-1])
        found[f"stmatrix{count}"] = lambda count=count: k.stmatrix(k.smem("s", (256,), i16), [n]*count, count == 2)
    for even in (False, True):
        found[f"round_tf32{even}"] = lambda even=even: k.store(p.as_(i32), k.round_tf32(p[0], even))
    for type in (f16, bf16):
        found[f"round_pair_{type}"] = lambda type=type: k.store(p.as_(i32), k.round_pair(k.pack(p[0], p[1]), type))
        found[f"fma_pair_{type}"] = lambda type=type: k.store(p.as_(i32), k.fma_pair(n, n, n, type))
    found["round_e4m3"] = lambda: k.store(p.as_(i32), k.round_e4m3(p[0]))
    for half in range(2):
        found[f"fp8_pair{half}"] = lambda half=half: k.store(p.as_(i32), k.fp8_pair(n, "e4m3fn", half))
    shared, columns = SharedMatrix(), SharedMatrix(64, "mn", 2048, 512)
    for atom in (Wgmma(16), Wgmma(8, "f16", "f16", "f16", columns, columns), Wgmma(24, "i8", "u8", "i32", None),
                 Wgmma(8, "tf32", "tf32", b_layout=shared, negate_b=True), Wgmma(8, "e4m3fn", "e5m2", "f16", None)):
        found[f"wgmma_{atom.a}"] = lambda atom=atom: _wgmma(k, atom, p, n)
    for space in ("shared", "global"):
        found[f"fence_async_{space}"] = lambda space=space: k.fence_async(space)
    for sleep in (False, True):
        found[f"mbarrier{sleep}"] = lambda sleep=sleep: _mbarrier(k).wait(0, 1, sleep=sleep)
    found["arrive"] = lambda: _mbarrier(k).arrive()
    found["expect"] = lambda: _mbarrier(k).arrive(by="role", expect=64)
    for rank in range(1, 6):
        found[f"load{rank}"] = lambda rank=rank: _mbarrier(k).load(*_tile(k, rank, n), 1)
        found[f"store{rank}"] = lambda rank=rank: _store(k, rank, n, False)
        found[f"add{rank}"] = lambda rank=rank: _store(k, rank, n, True)
    found["multicast"] = lambda: _mbarrier(_cluster(k)).load(*_tile(k, 2, n), 1, ctas=n)
    for priority in POLICIES:
        found[priority] = lambda priority=priority: _mbarrier(k).load(*_tile(k, 2, n), 1, policy=k.l2_policy(priority))
    found["everywhere"] = lambda: _mbarrier(_cluster(k)).arrive(by="warp", everywhere=True)
    found["wait_for_cluster"] = lambda: _mbarrier(_cluster(k)).wait(0, 1, cluster=True)
    for T in (f32, i32):
        found[f"store_to_cluster_{T}"] = lambda T=T: _mbarrier(_cluster(k)).store(
            k.of_cta(k.smem("s", (32,), T), 1), [k.cast(n, T)]*4, 0, 1)
    found["bulk_store"] = lambda: k.bulk_store(p, k.smem("s", (32,), f32), n)
    found["bulk_wait"] = lambda: [k.bulk_commit(), k.bulk_wait(1, read=True)]
    found["role_barrier"] = lambda: _role(k)
    found["elect"] = lambda: k.store(p, k.select(k.elect(), p[1], p[2]))
    found["registers"] = lambda: [k.registers(128, more=True), k.registers(40, more=False)]
    found["bulk_copy"] = lambda: _mbarrier(k).copy(k.smem("s", (32,), f32), p, 64)
    for texel in (vec(f32, 4), vec(f64, 2), vec(i32, 4), vec(f32, 2), vec(f16, 8), vec(i64, 2)):
        found[f"fetch_{texel}"] = lambda texel=texel: k.store(
            p.as_(texel.scalar), k.fetch(_texture(k, texel), n))
    return found


def _wgmma(k: Kernel, atom: Wgmma, p: Any, n: Any) -> None:
    """A whole group, of which every register is stored."""
    s, acc = k.smem_bytes("s", 8192, 1024), k.tile(1, atom.registers, atom.sum)
    a = [n + e for e in range(1, 5)] if atom.a_layout is None else s
    k.wgmma_fence()
    k.wgmma(atom, acc, a, s, n < 3)
    k.wgmma_commit()
    k.wgmma_wait(0, acc)
    for e in range(atom.registers):
        x = acc[0, e]
        k.store(p.as_(x.type.scalar) + e * x.type.length, x)


def _mma(k: Kernel, atom: Any, p: Any) -> None:
    types = [x.type.scalar for x in (atom.a, atom.b, atom.c)]
    a, b, c = ([p.as_(T)[i] for i in range(count)] for T, count in zip(types, atom.registers))
    for i, x in enumerate(k.mma(atom, a, b, c)):
        p.as_(types[2])[i] = x


def _mbarrier(k: Kernel) -> Any:
    full = k.mbarriers("full", 2)
    k.init_mbarriers()
    return full


def _tile(k: Kernel, rank: int, n: Any) -> tuple[Any, Any, list[Any]]:
    from tilewright.ir.values import Value
    map = Value(k, TensorMap(f32, (4,) * rank))
    k.function.params.append(("map", map))
    return k.smem("tile", (4**rank,), f32, 128), map, [n + d for d in range(1, rank + 1)]


def _role(k: Kernel) -> None:
    with k.role("some", warps=2):
        k.role_barrier()


def _store(k: Kernel, rank: int, n: Any, add: bool) -> None:
    smem, map, at = _tile(k, rank, n)
    k.prefetch_map(map)
    k.tma_store(map, at, smem, add)
    k.bulk_commit()
    k.bulk_wait(0)


def _texture(k: Kernel, texel: Type) -> Any:
    from tilewright.ir.values import Value
    texture = Value(k, Texture(texel.scalar, texel.length))
    k.function.params.append(("texture", texture))
    return texture


def _cluster(k: Kernel) -> Kernel:
    k.function.cluster = (2, 1, 1)
    return k


def _while(k: Kernel, p: Any) -> None:
    x = k.variable(f32, p[0])
    with k.while_(lambda: x.get() < 3.0):
        x.set(x.get() + 1.0)
    p[0] = x.get()


def _rolled(k: Kernel, p: Any, n: Any) -> None:
    total = k.tile(1, 1, f32)
    with k.loop(n, unroll=False) as i:
        total[0, 0] = total[0, 0] + p[i]
    p[0] = total[0, 0]


def cases(some: bool = False) -> Iterator[tuple[str, list[Function]]]:
    """(group, kernels that each do one thing). `some`: of vectors each operation on each type has one length, in turn,
    so that each length has each operation on some type."""
    for i, T in enumerate(SCALARS):
        for length in LENGTHS:
            V = vec(T, length)
            yield str(V), [make(V, name) for make in (_of_values, _of_memory) for j, name in enumerate(make(V, None))
                           if not some or length == LENGTHS[1 + (i + j) % (len(LENGTHS) - 1)] or length == 1]
    yield "others", [_of_others(name) for name in _of_others(None)]


def _kernel(name: str, T: Type) -> Kernel:
    return Kernel(name, threads=64, p=ptr(T.scalar), n=i32, out=ptr(i8), x=i8 if T.bits == 1 else T.scalar)


def _of_values(T: Type, name: str | None) -> Any:
    k = _kernel(f"{name}_{T}", T)
    p, n, out, _ = k.args
    found = arithmetic(k, k.load(p, T), k.load(p + n, T), T)
    if name is None:
        return list(found)
    result = found[name]()
    k.store(out.as_(result.type.scalar), result, result.type.scalar.bytes)
    return k.function


def _of_memory(T: Type, name: str | None) -> Any:
    k = _kernel(f"{name}_{T}", T)
    p, n, _, _ = k.args
    found = accesses(k, p, n, T)
    if name is None:
        return list(found)
    found[name]()
    return k.function


def _of_others(name: str | None) -> Any:
    k = Kernel(f"{name}", threads=128, p=ptr(f32), n=i32)
    found = others(k, *k.args)
    if name is None:
        return list(found)
    found[name]()
    return k.function
