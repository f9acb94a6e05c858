"""No hot loop spills a vector or has an FMA too many: read from the assembly of every register tile a plan may have."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from tests.helpers.gpu_kernels import emit_wgmma_gemm
from tilewright.compiler.llvm import assembly
from tilewright.inspect import resources
from tilewright.inspect.resources import HotLoop, hot_loop, ptx_functions, ptx_loop
from tilewright.ir import Kernel, f32, ptr
from tilewright.kernels.cpu.microkernel import PACE, emit_microkernel, unrolled
from tilewright.kernels.cpu.packing import emit_pack
from tilewright.kernels.cpu.skinny import emit_dots, emit_stream
from tilewright.lab.ladder.gpu12_async import emit_async
from tilewright.plans.cpu import dot_sums
from tilewright.plans.cpu_tiles import DOT_ROWS, FEW_COLUMNS, FEW_ROWS, PACKED, STREAM_DEPTH, TILES, tiles_of
from tilewright.targets import names, target

pytestmark = pytest.mark.sampled

# how A and B may lie: what runtime.code compiles
MODES = (("packed", "packed"), ("rows", "rows"), ("columns", "rows"), ("rows", "masked"), ("columns", "masked"))


def fits(t, mr: int, nv: int) -> bool:
    """Accumulators, a row of B and an element of A."""
    return mr * nv + nv + 1 <= t.tile_registers


def tiles(t) -> list[tuple[int, int]]:
    return [(mr, nv) for nv in range(1, 7) for mr in range(1, 33) if fits(t, mr, nv)]


def check(t, dtype: str, mr: int, nv: int, a: str, b: str) -> HotLoop:
    loop = hot_loop(assembly(emit_microkernel(t, dtype, mr, nv, a, b), t))
    steps = PACE if a == "packed" and unrolled(mr, nv, dtype) else 1        # of k that the loop unrolls
    assert loop.fma == steps * mr * nv, loop.text
    assert loop.elements == steps * mr, loop.text       # each element of A once
    # where masks are vectors they compete with the tile for registers: a mask may be read again, an accumulator not
    masks = nv if b == "masked" and not t.masked else 0
    assert steps * nv <= loop.loads <= steps * nv + masks, loop.text      # each vector of B once
    assert loop.stores == 0, loop.text
    assert loop.hot_spills <= masks, loop.text
    if not masks:
        assert loop.spills == 0, loop.text
    assert loop.registers <= t.registers
    return loop


@pytest.mark.parametrize("name", names("cpu"))
def test_the_largest_tiles(name):
    """Of each width the tallest that fits, which has the fewest registers to spare, in one of two formats and modes."""
    t = target(name)
    for nv in range(1, 7):
        mr = max((m for m, n in tiles(t) if n == nv), default=0)
        if mr:
            check(t, *(("f32", mr, nv, "packed", "packed") if nv % 2 else ("f64", mr, nv, "rows", "rows")))


CHIPS = [replace(target(name), extensions=extensions) for name, extensions in (
    ("x86-avx512", ()), ("x86-avx512", ("avx512vnni", "avx512bf16")), ("x86-avx2", ()), ("x86-avx2", ("avxvnni",)))]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("t", CHIPS, ids=lambda t: " ".join([t.name, *t.extensions]))
def test_words_are_multiplied_by_the_instruction_that_is_meant_for_them(t):
    """In every tile that a plan of theirs may have; vpmaddwd has to keep its product in a register."""
    words = {"i16x2": "vpdpwssd" if t.extensions else "vpmaddwd"}
    if t.extensions:
        words |= {"i8x4": "vpdpbusd", "u8x4": "vpdpbusd"}
    if t.has("avx512bf16"):
        words["bf16x2"] = "vdpbf16ps"
    packed = {*TILES[t.registers], *PACKED.get(("AMD", t.registers), ()), *(x[:2] for x in FEW_ROWS[t.registers][-1:])}
    for (name, instruction), (mr, nv) in itertools.product(words.items(), packed):
        if instruction != "vpmaddwd" or mr * nv + nv + 2 <= t.registers:
            loop = check(t.extended, name, mr, nv, "packed", "packed")
            assert len(re.findall(rf"\b{instruction}\b", loop.text)) == loop.fma
            assert loop.text.count("vpaddd") == (loop.fma if instruction == "vpmaddwd" else 0)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "mode"), [*[("f32", mode) for mode in MODES], ("f64", MODES[0])])
@pytest.mark.parametrize("name", names("cpu"))
def test_every_tile(name, dtype, mode):
    t = target(name)
    if mode[1] == "masked" and name == "neon":
        pytest.skip("NEON has no masked loads: LLVM reads the lanes one by one")
    which = MODES.index(mode)       # the tiles of plans, and some more: of f32 from packed panels every second one
    for mr, nv in sorted({*used(t), *tiles(t)[which::2 if (dtype, which) == ("f32", 0) else 5]}):
        check(t, dtype, mr, nv, *mode)


def used(t) -> set[tuple[int, int]]:
    """The tiles that plans choose."""
    found = [tile[:2] for table in (TILES, FEW_ROWS, FEW_COLUMNS) for tile in tiles_of(t, table)]
    found += [tile for (_, registers), row in PACKED.items() if registers == t.registers and t.masked
              for tile in row]
    return set(found)


@pytest.mark.parametrize("name", names("cpu"))
def test_the_tiles_that_plans_use_are_among_them(name):
    assert used(target(name)) <= set(tiles(target(name)))


DOTS = [(name, *tile) for name in names("cpu") for tile in tiles_of(target(name), DOT_ROWS)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "columns", "rows"), DOTS)
def test_dot_products(name, columns, rows):
    t = target(name)
    for dtype in ("f32", "f64"):
        loop = hot_loop(assembly(emit_dots(t, dtype, rows, columns), t))
        sums = dot_sums(columns)
        assert (loop.fma, loop.loads, loop.stores) == (sums*rows * columns, sums*(rows + columns), 0), loop.text
        assert loop.hot_spills == 0, loop.text


STREAMS = [(name, *tile) for name in names("cpu") for tile in tiles_of(target(name), STREAM_DEPTH)]


@pytest.mark.parametrize(("name", "rows", "depth"), STREAMS)
def test_streams(name, rows, depth):
    t = target(name)
    loop = hot_loop(assembly(emit_stream(t, "f32", rows, depth), t))
    vectors = t.line // t.vector_bytes if rows == 1 else 1      # a whole line at a time
    operations = rows * depth, rows + depth, rows
    assert (loop.fma, loop.loads, loop.stores) == tuple(vectors * each for each in operations), loop.text
    assert loop.hot_spills == 0, loop.text


@pytest.mark.parametrize("kind", ["across", "any"])
@pytest.mark.parametrize("name", names("cpu"))
def test_packing_moves_each_vector_once(name, kind):
    t = target(name)
    for dtype, size in (("f32", 4), ("f64", 8)):
        lanes = t.lanes(size)
        loop = hot_loop(assembly(emit_pack(t, dtype, 2 * lanes, kind), t))
        assert (loop.fma, loop.spills) == (0, 0), loop.text
        if t.name != "neon":
            assert loop.loads + loop.elements == loop.stores == (2 if kind == "across" else 1), loop.text


@pytest.mark.parametrize("name", ["x86-avx512", "x86-avx2"])
def test_a_transpose_of_one_block_stays_in_registers(name):
    t = target(name)
    for dtype, size in (("f32", 4), ("f64", 8)):
        loop = hot_loop(assembly(emit_pack(t, dtype, t.lanes(size), "along"), t))
        assert loop.spills == 0, loop.text


def test_transposes_of_several_blocks_follow_each_other():
    """Three squares of 16 vectors at once would not fit into 32 registers."""
    t = target("x86-avx512")
    for dtype, size in (("f32", 4), ("f64", 8)):
        loop = hot_loop(assembly(emit_pack(t, dtype, 3 * t.lanes(size), "along"), t))
        assert loop.stores == 3 * t.lanes(size), loop.text
        assert loop.spills == loop.stack_vectors == 0, loop.text


@pytest.mark.parametrize(("name", "mr", "nv"), [("x86-avx512", 16, 2), ("x86-avx2", 8, 2), ("neon", 10, 3)])
def test_a_tile_that_does_not_fit_is_seen_to_spill(name, mr, nv):
    """The test above has teeth: 35, 19 and 34 registers do not fit."""
    t = target(name)
    assert not fits(t, mr, nv)
    loop = hot_loop(assembly(emit_microkernel(t, "f32", mr, nv), t))
    assert loop.spills > 0
    assert loop.stack_vectors >= loop.spills


# ---- the reader itself, on texts

X86 = """
	.type	kernel,@function
kernel:
	pushq	%rbp
	{frame}
	vmovups	%zmm7, 64(%rsp)                 # 64-byte Spill
	jmp	.LBB0_2
.LBB0_4:                                # after the loop in time, before it in the text
	vmovups	%zmm1, (%rdi)
	retq
.LBB0_2:                                # =>This Loop Header: Depth=1
	vmovups	(%rbp), %zmm3
	vmovaps	64(%rsp), %zmm4                 # 64-byte Reload
	.p2align	4
.LBB0_3:
	vmovups	(%rsi,%rax), %zmm0 {{%k1}} {{z}}
	vbroadcastss	4(%rdx), %zmm2
	vfmadd231ps	%zmm2, %zmm0, %zmm1
	vfmadd231ps	(%rcx){{1to16}}, %zmm0, %zmm5
	vfmadd231ps	64(%rcx), %zmm0, %zmm6
	vmovntps	%zmm6, (%r8)
	vfmadd213ss	8(%rdx), %xmm0, %xmm1
	decq	%rax
	jne	.LBB0_3
	vmovups	%zmm1, 128(%rdi)
	decq	%rbx
	jne	.LBB0_2
	jmp	.LBB0_4
.Lfunc_end0:
	.size	kernel, .Lfunc_end0-kernel

	.type	straight,@function
straight:
	retq
.Lfunc_end1:
"""


def test_reading_x86():
    loop = hot_loop(X86.format(frame=""), "kernel")
    assert loop.text.startswith(".LBB0_3:\n\tvmovups\t(%rsi,%rax), %zmm0")
    assert loop.text.endswith("jne\t.LBB0_3")
    assert (loop.fma, loop.loads, loop.elements, loop.stores) == (3, 2, 3, 1)
    assert loop.registers == 5
    assert (loop.hot_spills, loop.spills, loop.stack_vectors) == (0, 1, 2)
    assert loop.fma_per_load == 3 / 5
    assert hot_loop(X86.format(frame="")) == loop


def test_rbp_is_the_stack_only_where_the_function_keeps_its_frame_there():
    assert hot_loop(X86.format(frame="movq	%rsp, %rbp"), "kernel").spills == 2


def test_functions_and_what_is_not_there():
    asm = X86.format(frame="")
    assert resources.functions(asm) == ["kernel", "straight"]
    with pytest.raises(ValueError, match="straight has no loop"):
        hot_loop(asm, "straight")
    with pytest.raises(ValueError, match="no function other in this assembly; there are: kernel, straight"):
        hot_loop(asm, "other")
    with pytest.raises(ValueError, match="no function in this assembly has a loop"):
        hot_loop("")


AARCH64 = """
	.type	kernel,@function
kernel:
	stp	d9, d8, [sp, #-32]!
	cbz	x0, .LBB0_2
.LBB0_1:
	ldp	q0, q1, [x1], #32
	ldr	s2, [x2]
	ld1r	{ v3.4s }, [x3]
	ldp	s4, s5, [x2, #4]
	str	q6, [sp, #16]
	fmla	v16.4s, v0.4s, v2.s[0]
	fmla	v17.4s, v1.4s, v3.4s
	stp	q16, q17, [x4]
	subs	x0, x0, #1
	b.ne	.LBB0_1
.LBB0_2:
	ldp	d9, d8, [sp], #32
	ret
.Lfunc_end0:
"""


def test_reading_aarch64():
    loop = hot_loop(AARCH64)
    assert (loop.fma, loop.loads, loop.elements, loop.stores) == (2, 2, 4, 3)
    assert loop.registers == 9
    # the callee-saved halves of v8 and v9 are no spill
    assert (loop.hot_spills, loop.spills, loop.stack_vectors) == (1, 1, 1)


# ---- PTX


def test_the_main_loop_of_a_gpu_kernel():
    """A round is 8 steps of k, and one 128 FMAs for six vectors; the rest is copies for the next round."""
    function = emit_async()
    text = assembly(function, target("sm_90a"))
    loop = ptx_loop(text, function.name)
    assert loop == ptx_loop(text)
    counted = (loop.counts[kind] for kind in ("FMAs", "shared loads", "copies in flight", "barriers"))
    assert tuple(counted) == (8 * 128, 8 * 6, (128 + 256) * 8 // 256, 1)
    assert loop.counts["local memory"] == loop.counts["global loads"] == loop.counts["global stores"] == 0
    assert loop.counts["others"] < 64
    assert loop.text.count("fma.rn.f32") == loop.counts["FMAs"]
    assert ptx_functions(text) == [function.name]


def test_the_main_loop_of_roles():
    """A round multiplies a stage, 2 blocks of 64 rows by 4 times 16 of k; the loop that waits for it is inside."""
    loop = ptx_loop(assembly(emit_wgmma_gemm(CTA_M=256, CTA_N=64), target("sm_90a")))
    assert (loop.counts["MMAs"], loop.counts["barriers"], loop.counts["copies in flight"]) == (2 * 4, 2, 0)
    assert "wgmma.wait_group.sync.aligned 1" in loop.text


def test_ptx_without_a_loop():
    k = Kernel("straight", threads=32, x=ptr(f32))
    k.args[0][k.thread[0]] = 1.0
    text = assembly(k.function, target("sm_75"))
    with pytest.raises(ValueError, match="straight has no loop"):
        ptx_loop(text, "straight")
    with pytest.raises(ValueError, match="no kernel in this PTX has a loop"):
        ptx_loop(text)
    with pytest.raises(ValueError, match="no kernel bent in this PTX; there are: straight"):
        ptx_loop(text, "bent")
