"""What NVIDIA's GPUs alone have: copies in flight (cp.async), accesses of matrices in shared memory (ldmatrix), thread
block clusters, textures. Mbarriers and what they wait for are in `ir.ops.pipelines`.

Sources: NVIDIA, "PTX ISA", https://docs.nvidia.com/cuda/parallel-thread-execution/ (cp.async, ldmatrix, stmatrix,
cvt, barrier.cluster, mapa, tex); LLVM, "User Guide for NVPTX Back-end", https://llvm.org/docs/NVPTXUsage.html
"""
from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import formats
from tilewright.ir.exact import silent_multiply_add
from tilewright.ir.ops.core import Operation, by_family, by_machine, calls, reinterpreted
from tilewright.ir.ops.gpu import whole_warps
from tilewright.ir.ops.pipelines import whole_cta
from tilewright.ir.types import Pointer, Texture, Type, bf16, f16, f32, f64, i32, vec
from tilewright.ir.values import Value

if TYPE_CHECKING:
    from tilewright.ir.builder import Kernel

COPIED = (4, 8, 16)                                     # bytes that one asynchronous copy can move
TEXELS = (vec(f32, 4), vec(i32, 4), vec(f64, 2))        # what one fetch can bring: always 16 bytes


# ---- copies from global to shared memory that go on while the thread does

@cache
def _copy(bytes: int, some: bool) -> Operation:
    """`some`: only the first `valid` bytes are read, the others written as zeros. 16 bytes bypass L1, fewer cannot."""
    intrinsic = f"llvm.nvvm.cp.async.{'cg' if bytes == 16 else 'ca'}.shared.global.{bytes}{'.s' * some}"

    def meaning(gang: Any, node: Any, smem: Any, gmem: Any, valid: Any = None) -> None:
        gang.machine.copies.start(gang, node, smem, gmem, bytes, valid)
    return Operation(f"cp_async{bytes}{'_some' * some}", calls(intrinsic), meaning, "cp.async", "effect",
                     needs="cp.async")


def cp_async(k: Kernel, smem: Value, gmem: Value, bytes: int, valid: Any = None) -> None:
    """Start to copy `bytes` (4, 8 or 16, both addresses aligned to them) from global to shared memory.

    Only the first `valid` of them are read (an i32 value; all if None), the others are written as zeros. This
    thread may read the destination when it has waited for the group of the copy, and others after a barrier.
    """
    if bytes not in COPIED:
        raise ValueError(f"an asynchronous copy moves 4, 8 or 16 bytes, not {bytes}")
    if smem.type.space != "shared" or gmem.type.space != "global":
        raise TypeError(f"a copy goes from global to shared memory, not from {gmem.type} to {smem.type}")
    k._effect(_copy(bytes, valid is not None), smem, gmem, *(() if valid is None else (k._value(valid, i32),)))


COMMIT = Operation("cp_async_commit", calls("llvm.nvvm.cp.async.commit.group"), by_machine("copies", "commit"),
                   "cp.async group", "effect", needs="cp.async")


def cp_async_commit(k: Kernel) -> None:
    """Close the group of the copies that this thread has started since the last group."""
    k._effect(COMMIT)


@cache
def _wait(pending: int) -> Operation:
    return Operation(f"cp_async_wait{pending}", calls("llvm.nvvm.cp.async.wait.group", pending),
                     by_machine("copies", "wait", pending), "cp.async group", "effect", needs="cp.async")


def cp_async_wait(k: Kernel, pending: int = 0) -> None:
    """Wait until at most `pending` of this thread's newest groups are still in flight."""
    k._effect(_wait(pending))


# ---- matrices of 8 x 8 numbers of 16 bits between shared memory and a warp's registers
#
# Lane l says where row l % 8 of matrix l // 8 is: 16 bytes. Lane l has of each matrix the numbers 2*(l % 4) and the one
# after it of row l // 4, in an i32; transposed: of column l // 4, the rows 2*(l % 4) and the one after it.

COUNTS = (1, 2, 4)          # of matrices
ROW = vec(i32, 4)           # what a lane's address points to


def _addressing(gang: Any, count: int) -> Any:
    """The lanes whose addresses count, [threads]; None: all."""
    return None if count == COUNTS[-1] else np.arange(gang.size) % gang.machine.warp < 8*count


def _transposed(words: Any) -> Any:
    """Rows [..., 8, 4 words] of 8 x 8 numbers, transposed."""
    return np.ascontiguousarray(words.view(np.uint16).swapaxes(-1, -2)).view(np.int32)


def _ldmatrix_meaning(gang: Any, node: Any, smem: Any, count: int, transposed: bool) -> Any:
    whole_warps(gang, node)
    access = gang.access(node, "load", ROW, ROW.bytes)
    rows = np.broadcast_to(access.gather(gang, np.broadcast_to(smem, gang.size), _addressing(gang, count)),
                           (4, gang.size))
    words = np.ascontiguousarray(rows.T).reshape(-1, 4, 8, 4)               # [warps, matrices, rows, words]
    words = _transposed(words) if transposed else words
    matrices = [words[:, matrix].reshape(gang.size) for matrix in range(count)]
    return matrices if count > 1 else matrices[0]


def _stmatrix_meaning(gang: Any, node: Any, smem: Any, values: tuple[Any, ...], transposed: bool) -> None:
    whole_warps(gang, node)
    words = np.zeros((gang.size // gang.machine.warp, 4, 8, 4), np.int32)
    for matrix, x in enumerate(values):
        words[:, matrix] = np.broadcast_to(x, gang.size).reshape(-1, 8, 4)
    words = _transposed(words) if transposed else words
    gang.access(node, "store", ROW, ROW.bytes).scatter(gang, np.broadcast_to(smem, gang.size), words.reshape(-1, 4).T,
                                                       _addressing(gang, len(values)))


def _matrices(verb: str, count: int, transposed: bool) -> str:
    return f"llvm.nvvm.{verb}.sync.aligned.m8n8.x{count}{'.trans'*transposed}.b16.p3"


@cache
def _ldmatrix(count: int, transposed: bool) -> Operation:
    def spelling(low: Any, t: Any, smem: Any) -> Any:
        result = low.type(i32) if count == 1 else low.struct([i32]*count)
        matrices = low.call(_matrices("ldmatrix", count, transposed), result, smem, name="matrices")
        return matrices if count == 1 else [low.b.extract_value(matrices, e) for e in range(count)]
    return Operation(f"ldmatrix{count}{'_transposed'*transposed}", spelling,
                     lambda gang, node, smem: _ldmatrix_meaning(gang, node, smem, count, transposed), "ldmatrix",
                     "effect", needs="ldmatrix")


def ldmatrix(k: Kernel, smem: Value, count: int, transposed: bool = False) -> tuple[Value, ...]:
    """`count` (1, 2 or 4) matrices of 8 x 8 numbers of 16 bits, an i32 with two numbers of each. Lane l passes the
    address of row l % 8 of matrix l // 8, aligned to 16 bytes (others than those of `count` matrices do not count, but
    have to be addresses on sm_75). All lanes of the warp take part."""
    _check_matrices(smem, count)
    return k._group(_ldmatrix(count, transposed), [i32]*count, smem)


@cache
def _stmatrix(count: int, transposed: bool) -> Operation:
    return Operation(f"stmatrix{count}{'_transposed'*transposed}", calls(_matrices("stmatrix", count, transposed)),
                     lambda gang, node, smem, *values: _stmatrix_meaning(gang, node, smem, values, transposed),
                     "stmatrix", "effect", needs="stmatrix", writes=True)


def stmatrix(k: Kernel, smem: Value, values: Any, transposed: bool = False) -> None:
    """Store 1, 2 or 4 matrices, of which each lane has the `values` that `ldmatrix` would return."""
    _check_matrices(smem, len(values))
    k._effect(_stmatrix(len(values), transposed), smem, *(k._value(x, i32) for x in values))


def _check_matrices(smem: Value, count: int) -> None:
    if not isinstance(smem.type, Pointer) or smem.type.space != "shared":
        raise TypeError(f"matrices are loaded and stored in shared memory, not at a {smem.type}")
    if count not in COUNTS:
        raise ValueError(f"one instruction moves 1, 2 or 4 matrices of 8 x 8, not {count}")


def _tf32(x: Any, even: bool = False) -> Any:
    """To 10 bits of mantissa, halves away from zero, or to even; a NaN is the one of PTX."""
    bits = np.asarray(x).view(np.uint32)
    half = np.uint32(0x0FFF) + (bits >> 13 & 1) if even else np.uint32(0x1000)
    rounded = np.where(np.isnan(x), 0x7FFFFFFF, (bits + half) & np.uint32(0xFFFFE000))
    return rounded.astype(np.uint32).view(np.int32)[()]


ROUND_TF32 = Operation("round_tf32", lambda low, t, x: low.call("llvm.nvvm.f2tf32.rna", low.type(t), x, name="tf32"),
                       lambda t, x: _tf32(x), needs="tf32")
ROUND_TF32_EVEN = Operation("round_tf32.even", lambda low, t, x: low.call(
    "llvm.nvvm.f2tf32.rn", low.type(t), x, name="tf32"), lambda t, x: _tf32(x, even=True), needs="tf32.even")


def round_tf32(k: Kernel, x: Value, even: bool = False) -> Value:
    """The tf32 nearest to an f32, as the i32 that matrix instructions take (cvt.rna.tf32.f32); halves away from zero,
    which takes two instructions, or on Hopper to even, which takes one (cvt.rn.tf32.f32)."""
    if x.type != f32:
        raise TypeError(f"round_tf32 takes an f32, not {x.type}")
    return k._op(ROUND_TF32_EVEN if even else ROUND_TF32, i32, x)


def _pair(t: Type) -> Any:
    """To nearest, ties to even, in the bits of t; a NaN is the one of PTX."""
    def meaning(_: Any, x: Any) -> Any:
        with np.errstate(over="ignore"):
            bits = x.astype(t.numpy).view(np.uint16)
        return _two_in_a_word(np.where(np.isnan(x), 0x7FFF, bits))
    return meaning


def _two_in_a_word(halves: Any) -> Any:
    """[2, threads] of 16 bits as i32, the first one in the lower half."""
    lower, upper = halves.astype(np.uint32)
    words = (lower | upper << 16).view(np.int32)
    return words if words.size > 1 else words[0]


def _pair_ptx(t: Type) -> Any:
    return lambda low, _, x: low.asm(f"cvt.rn.{t}x2.f32 $0, $2, $1;", low.integer(32), "=r,f,f",
                                     *(low.b.extract_element(x, low.i32(e)) for e in (0, 1)))


def _pair_amd(t: Type) -> Any:
    return lambda low, _, x: low.b.bitcast(low.b.fptrunc(x, low.type(vec(t, 2))), low.integer(32), name="pair")


ROUND_PAIR = {t: Operation(f"round_pair_{t}", by_family(nvptx64=_pair_ptx(t), amdgcn=_pair_amd(t)), _pair(t),
                           needs="bf16 or amd") for t in (f16, bf16)}


def round_pair(k: Kernel, x: Value, type: Type) -> Value:
    """Two f32 as the two f16 or bf16 nearest to them, ties to even, in an i32, the first one in its lower half
    (cvt.rn.bf16x2.f32, v_cvt_pk_bf16_f32)."""
    if x.type != vec(f32, 2) or type not in ROUND_PAIR:
        raise TypeError(f"round_pair makes f16 or bf16 of two f32, not {type} of {x.type}")
    return k._op(ROUND_PAIR[type], i32, x)


def _fma_pair(t: Type) -> Any:
    def meaning(_: Any, *words: Any) -> Any:
        sums = silent_multiply_add(vec(t, 2), *(reinterpreted(vec(t, 2), np.asarray(x)) for x in words))
        return reinterpreted(i32, sums)
    return meaning


FMA_PAIR = {t: Operation(f"fma_pair_{t}", lambda low, _, *xs, t=t: low.asm(
    f"fma.rn.{t}x2 $0, $1, $2, $3;", low.integer(32), "=r,r,r,r", *xs), _fma_pair(t), "fma", needs="bf16", flops=4)
    for t in (f16, bf16)}


def fma_pair(k: Kernel, x: Value, y: Value, z: Value, type: Type) -> Value:
    """x*y + z of two f16 or bf16 in an i32 each, rounded once (fma.rn.bf16x2)."""
    if any(operand.type != i32 for operand in (x, y, z)) or type not in FMA_PAIR:
        raise TypeError(f"fma_pair takes three i32 with two f16 or bf16 each, not {x.type}, {y.type}, {z.type} and "
                        f"{type}")
    return k._op(FMA_PAIR[type], i32, x, y, z)


# ---- fp8 as f16, of which it has all numbers

def _fp8_ptx(format: str, half: int) -> Any:
    names = "low, high"
    return lambda low, _, x: low.asm(
        f"{{ .reg .b16 {names}; mov.b32 {{{names}}}, $1; cvt.rn.f16x2.{format}x2 $0, {('low', 'high')[half]}; }}",
        low.integer(32), "=r,r", x)


def _fp8(format: str, half: int) -> Any:
    T = formats.FORMATS["e4m3fn" if format == "e4m3" else format].dtype

    def meaning(_: Any, x: Any) -> Any:
        bytes = np.ascontiguousarray(np.atleast_1d(x).astype(np.int64).astype(np.uint32)).view(np.uint8).reshape(-1, 4)
        pair = np.ascontiguousarray(bytes[:, 2*half:2*half + 2]).view(T).astype(np.float16)
        return _two_in_a_word(np.where(np.isnan(pair), np.uint16(0x7FFF), pair.view(np.uint16)).T)
    return meaning


FP8_PAIR = {(format, half): Operation(f"fp8_pair_{format}_{half}", _fp8_ptx(format, half), _fp8(format, half),
                                      needs="fp8")
            for format in ("e4m3", "e5m2") for half in range(2)}


def fp8_pair(k: Kernel, x: Value, format: str, half: int) -> Value:
    """The two fp8 in the lower (`half` 0) or upper half of an i32 as two f16 in an i32, the first one in its lower
    half (cvt.rn.f16x2.e4m3x2); a NaN is the one of PTX."""
    if x.type != i32 or format not in ("e4m3fn", "e5m2") or half not in (0, 1):
        raise TypeError(f"fp8_pair takes an i32 of e4m3fn or e5m2 and a half of it, not {x.type}, {format} and {half}")
    return k._op(FP8_PAIR[format.removesuffix("fn"), half], i32, x)


def _round_e4m3(_: Any, x: Any) -> Any:
    numbers = np.clip(x, -448, 448).astype(formats.FORMATS["e4m3fn"].dtype)
    return np.where(np.isnan(x), 0x7F, np.asarray(numbers).view(np.uint8)).astype(np.int32)[()]


ROUND_E4M3 = Operation("round_e4m3", lambda low, t, x: low.b.zext(low.asm(
    "cvt.rn.satfinite.e4m3x2.f32 $0, 0f00000000, $1;", low.integer(16), "=h,f", x), low.type(t)), _round_e4m3,
    needs="fp8")


def round_e4m3(k: Kernel, x: Value) -> Value:
    """The pattern of the e4m3fn nearest to an f32, ties to even and at most 448 in size, in an i32; a NaN is 0x7f."""
    if x.type != f32:
        raise TypeError(f"round_e4m3 takes an f32, not {x.type}")
    return k._op(ROUND_E4M3, i32, x)


ROUND_E4M3_4 = Operation("round_e4m3_4", lambda low, t, x: low.asm(
    "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; cvt.rn.satfinite.e4m3x2.f32 high, $4, $3; "
    "mov.b32 $0, {low, high}; }", low.type(t), "=r,f,f,f,f", *(low.b.extract_element(x, low.i32(e)) for e in range(4))),
    lambda t, x: sum((_round_e4m3(t, y).astype(np.int64) << 8*e for e, y in enumerate(x))).astype(np.int32),
    needs="fp8")


def round_e4m3_4(k: Kernel, x: Value) -> Value:
    """The e4m3fn nearest to four f32, as `round_e4m3` has them, in an i32, the first one in its lowest bits."""
    if x.type != vec(f32, 4):
        raise TypeError(f"round_e4m3_4 takes four f32, not {x.type}")
    return k._op(ROUND_E4M3_4, i32, x)


# ---- clusters: CTAs that run at once, by Kernel(cluster=(x, y, z)), meet, and read one another's shared memory

# This thread has come, and what it did before is for all threads of the cluster to see (release); it goes on.
ARRIVE = Operation("cluster_arrive", calls("llvm.nvvm.barrier.cluster.arrive.aligned"),
                   by_machine("clusters", "arrive"), "cluster barrier", "effect", needs="cluster")
# No thread goes on before all threads of the cluster have come; what they did before that is then visible (acquire).
WAIT = Operation("cluster_wait", calls("llvm.nvvm.barrier.cluster.wait.aligned"), by_machine("clusters", "wait"),
                 "cluster barrier", "blocking", needs="cluster")


def cluster_barrier(k: Kernel) -> None:
    """All threads of all CTAs of the cluster meet here; what each did in memory before, the others see after.

    Before they have met once a CTA may not have begun, and after they meet for the last time it may be gone: only
    between can others use its shared memory."""
    cluster_arrive(k)
    cluster_wait(k)


def cluster_arrive(k: Kernel) -> None:
    """The first half of the barrier: let the others know that this thread has come, and go on."""
    in_cluster(k, "a cluster barrier")
    whole_cta(k, "a cluster barrier")
    k._effect(ARRIVE)


def cluster_wait(k: Kernel) -> None:
    """The other half: wait until all have come."""
    in_cluster(k, "a cluster barrier")
    k._effect(WAIT)


# The place in another CTA's shared memory that corresponds to one of this CTA's.
OF_CTA = Operation("of_cta", lambda low, t, p, rank: low.call("llvm.nvvm.mapa.shared.cluster", t, p, rank, name="at"),
                   by_machine("clusters", "of_cta"), "integer", "effect", needs="cluster")


def cluster_rank(k: Kernel) -> Value:
    """Which CTA of its cluster this one is: x + y*X + z*X*Y, from its place in a cluster of X x Y x Z."""
    in_cluster(k, "cluster_rank")
    return k._builtin("cluster.ctarank")


def of_cta(k: Kernel, smem: Value, rank: Any) -> Value:
    """Map smem to the shared memory of the cluster's CTA `rank` (an i32): a pointer to "cluster" memory."""
    in_cluster(k, "of_cta()")
    if not isinstance(smem.type, Pointer) or smem.type.space != "shared":
        raise TypeError(f"of_cta() takes a place in this CTA's shared memory, not a {smem.type}")
    there = Pointer(smem.type.element, "cluster")
    pointer = k._op(OF_CTA, there, smem, k._value(rank, i32))
    return Value(k, there, array=smem.array, strides=smem.strides, id=pointer.id)


def in_cluster(k: Kernel, what: str) -> None:
    """SyntaxError unless the kernel has clusters."""
    if k.function.ctas_cluster == 1:
        raise SyntaxError(f"{what} is for clusters, and {k.function.name} has none: Kernel(cluster=(x, y, z))")


# ---- textures: an index outside gives zeros, so that edges need no predicate

def _fetch_llvm(low: Any, t: Any, texture: Any, index: Any) -> Any:
    """The intrinsic returns a struct of four words; an f64 travels as two of integers."""
    word, name = (f32, "f32") if t.scalar == f32 else (i32, "s32")
    texel = low.call(f"llvm.nvvm.tex.unified.1d.v4{name}.s32", low.struct([word] * 4), texture, index)
    words = low.pack([low.b.extract_value(texel, e) for e in range(4)], vec(word, 4))
    return low.b.bitcast(words, low.type(t), name="texel")


def _fetch_meaning(gang: Any, node: Any, texture: Any, index: Any) -> Any:
    """Texel `index` [threads] as [length, threads]."""
    t = node.operands[0].type.texel
    index = np.broadcast_to(index, gang.size).astype(np.int64)
    inside = (index >= 0) & (index < gang.machine.memory.find(int(texture)).size // t.bytes)
    access = gang.access(node, "load", t, t.bytes)
    return access.gather(gang, texture + np.where(inside, index, 0) * t.bytes, None if inside.all() else inside)


FETCH = Operation("fetch", _fetch_llvm, _fetch_meaning, "texture", "effect", needs="gpu")


def fetch(k: Kernel, texture: Value, index: Value) -> Value:
    """Texel `index` (an i32) of a texture parameter, a vector; zeros where it is outside."""
    if not isinstance(texture.type, Texture):
        raise TypeError(f"only a texture parameter can be fetched from, not {texture.type}")
    return k._op(FETCH, texture.type.texel, texture, k._value(index, i32))
