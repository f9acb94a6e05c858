"""What is recorded becomes the PTX that is meant: each instruction on each architecture, read as text and assembled.

ptxas comes with the wheel nvidia-cuda-nvcc; where it is missing the text is checked, and the test then skipped.
"""

from __future__ import annotations

import dataclasses
import os
import re

import numpy as np
import pytest

from tests.helpers.emitted_elsewhere import doubled
from tests.helpers.processes import printed
from tilewright import simulator
from tilewright.compiler import gate, llvm, ptxas
from tilewright.ir import Kernel, Texture, bf16, f16, f32, f64, i1, i8, i16, i32, i64, ptr, vec
from tilewright.targets import names, target

ARCHS = names("gpu")
COPYING = [arch for arch in ARCHS if "cp.async" in target(arch).instructions]


def check(function, arch, *instructions, without=(), **usage):
    """The PTX, which has these instructions (regular expressions), no spills, and these figures by ptxas."""
    text = llvm.assembly(function, target(arch))
    assert f".target {arch}\n" in text
    for instruction in instructions:
        assert re.search(instruction, text), f"no {instruction} in\n{text}"
    for instruction in without:
        assert not re.search(instruction, text), f"{instruction} in\n{text}"
    cubin, used = ptxas.assemble(text, arch)
    assert cubin.startswith(b"\x7fELF")
    assert used[function.name].spill_stores == used[function.name].spill_loads == 0
    for field, value in usage.items():
        assert getattr(used[function.name], field) == value, (field, used)
    return text


def recorded(write, threads=128, **options):
    """A kernel that `write(k, a, b, n, x)` writes: a and b are f32 arrays, n is an i32, x an f32."""
    k = Kernel("kernel", threads=threads, a=ptr(f32), b=ptr(f32), n=i32, x=f32, **options)
    write(k, *k.args)
    return k.function


# ---- who I am, and what a kernel is


@pytest.mark.parametrize("arch", ARCHS)
def test_a_kernel_is_an_entry_with_bounds(arch):
    def write(k, a, b, n, x):
        (tx, ty), (bx, by), (gx, gy) = k.thread, k.block, k.grid
        a[tx + ty * 16 + bx + by + gx + gy + k.block_z] = x

    check(recorded(write, (16, 8), min_ctas=2), arch, r"\.visible \.entry kernel\(", r"\.reqntid 16, 8, 1",
          r"\.minnctapersm 2", "%tid.x", "%tid.y", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y",
          r"\.address_size 64")
    check(recorded(write, 96, max_registers=64), arch, r"\.reqntid 96, 1, 1", r"\.maxnreg 64", without=["minnctapersm"])


def test_one_limit_of_registers():
    with pytest.raises(ValueError, match="max_registers and min_ctas cannot both be given"):
        Kernel("kernel", threads=32, min_ctas=2, max_registers=64)


@pytest.mark.parametrize("arch", ARCHS)
def test_registers_are_limited(arch):
    """A tile of 64 accumulators: within 128 registers without spills, in 32 not."""

    def write(k, a, b, n, x):
        acc, t = k.tile(8, 8, f32), k.thread[0]
        with k.loop(n) as p:
            a_reg, b_reg = ([a[p * s + t * 8 + i] for i in range(8)] for s in (7, 9))
            for i in range(8):
                for j in range(8):
                    acc[i, j] = k.fma(a_reg[i], b_reg[j], acc[i, j])
        for i in range(8):
            for j in range(8):
                b[t + 128 * (i + 8 * j)] = acc[i, j]

    check(recorded(write, max_registers=128), arch)
    tight = llvm.assembly(recorded(write, max_registers=32), target(arch))
    assert ptxas.assemble(tight, arch)[1]["kernel"].spill_stores > 0


# ---- memory


@pytest.mark.sampled(2)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("T", "length", "suffix"), [
    (f32, 1, "b32"), (f32, 2, "v2.b32"), (f32, 4, "v4.b32"), (f64, 1, "b64"), (f64, 2, "v2.b64"), (i32, 4, "v4.b32"),
    (i64, 2, "v2.b64"), (i8, 1, "b8"), (f16, 1, "b16"), (f16, 8, "v4.b32"), (i8, 16, "v4.b32"),
])
def test_loads_and_stores(arch, T, length, suffix):
    """From global memory by way of the read-only path, which a parameter that nobody writes through takes."""
    V = vec(T, length)
    k = Kernel("kernel", threads=64, a=ptr(T), b=ptr(T))
    a, b = k.args
    smem, t = k.smem("s", (64 * length,), T), k.thread[0] * length
    k.store(smem + t, k.load(a + t, V))
    k.barrier()
    k.store(b + t, k.load(smem + (64 * length - length - t), V))
    check(k.function, arch, rf"ld\.global\.nc\.{suffix}\s", rf"st\.shared\.{suffix}\s", rf"ld\.shared\.{suffix}\s",
          rf"st\.global\.{suffix}\s", "bar.sync", shared=64 * V.bytes)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_vector_that_need_not_be_aligned_is_split(arch):
    """What is promised decides: the instruction would fault on an address that is no multiple of its bytes."""

    def write(k, a, b, n, x):
        k.store(b, k.load(a + n, vec(f32, 4), align=4), align=8)

    text = check(recorded(write), arch, without=[r"ld\.global\.nc\.v", r"st\.global\.v4"])
    assert len(re.findall(r"ld\.global\.nc\.b32\s", text)) == 4
    assert len(re.findall(r"st\.global\.v2\.b32\s", text)) == 2


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_written_is_not_read_through_the_read_only_path(arch):
    check(recorded(lambda k, a, b, n, x: k.store(a + n, a[0])), arch, r"ld\.global\.b32", without=[r"\.nc"])
    check(recorded(lambda k, a, b, n, x: k.store(b + n, a[0]), noalias=False), arch, r"ld\.global\.b32",
          without=[r"\.nc"])


def test_alignment_is_a_power_of_two():
    k = Kernel("kernel", threads=32, a=ptr(f32))
    for align in (0, 3, 12, -4):
        with pytest.raises(ValueError, match=f"aligned to 1, 2, 4, 8 ... bytes, not {align}"):
            k.load(k.args[0], align=align)
    for align in (2, 24):
        with pytest.raises(ValueError, match=rf"s can be aligned to 4, 8 \.\.\. bytes, not {align}"):
            k.smem("s", (4,), f32, align=align)


@pytest.mark.parametrize("arch", ARCHS)
def test_addresses_have_64_bits(arch):
    """Also where indices have 32: an i32 is widened before it is multiplied by a leading dimension or a size."""
    k = Kernel("kernel", threads=32, a=ptr(f64), lda=i64, i=i32, j=i32)
    a, lda, i, j = k.args
    a.view(lda, 1)[i, j] = 1.0
    check(k.function, arch, r"ld\.param\.s32\s+%rd", r"mul\.lo\.s64", r"mul\.wide\.s32", r"st\.global\.b64\s+\[%rd",
          without=[r"mul\.lo\.s32", r"mad\.lo\.s32", r"shl\.b32"])


@pytest.mark.parametrize("arch", ARCHS)
def test_shared_memory_declared_and_dynamic(arch):
    """Up to 48 KiB are declared in the module; beyond that all of it is an argument of the launch."""

    def fill(size):
        def write(k, a, b, n, x):
            for name, align in (("s", 16), ("t", 128)):
                smem, t = k.smem(name, (2, size // 16), f32, align), k.thread[0]
                smem[1, t] = a[t]
                k.barrier()
                b[t + align] = smem[1, n - t]
        return write

    small, large = recorded(fill(48 << 10)), recorded(fill(52 << 10))
    assert (small.shared_bytes, large.shared_bytes) == (48 << 10, 52 << 10)
    check(small, arch, r"\.shared \.align 16 \.b8 kernel_s\[24576\]", r"\.shared \.align 128 \.b8 kernel_t\[24576\]",
          shared=48 << 10)
    if large.shared_bytes <= target(arch).smem_cta:
        check(large, arch, r"\.extern \.shared \.align 128 \.b8 shared\[\]", without=[r"kernel_s"], shared=0)


@pytest.mark.parametrize("arch", ARCHS)
def test_addresses_of_shared_memory_take_one_register(arch):
    def write(k, a, b, n, x):
        smem = k.smem("s", (8, 128), f32)
        smem[n, k.thread[0]] = x
        k.barrier()
        a[k.thread[0]] = smem[k.thread[0] % 8, n]

    check(recorded(write), arch, r"st\.shared\.b32\s+\[%r\d+\]", r"ld\.shared\.b32\s+%r\d+, \[%r\d+\]")


@pytest.mark.parametrize("arch", ARCHS)
def test_local_memory(arch):
    """An array that an index reaches is memory of the thread; one that only numbers reach is registers."""

    def write(dynamic):
        def write(k, a, b, n, x):
            own = k.local("own", (16,), f32)
            for i in range(16):
                own[i] = a[i]
            b[0] = own[n] if dynamic else own[3]
        return write

    text = llvm.assembly(recorded(write(True)), target(arch))
    assert re.search(r"\.local \.align 64 \.b8 \s*__local_depot0\[64\]", text)
    assert re.search(r"ld\.local\.b32", text)
    check(recorded(write(False)), arch, without=["local"], stack=0)


@pytest.mark.parametrize("arch", ARCHS)
def test_accesses_under_a_mask(arch):
    def write(k, a, b, n, x):
        t = k.thread[0] * 4
        k.store(b + t, k.load(a + t, vec(f32, 4), mask=t < n), mask=t < n + 4)
        k.store(b + t, k.load(a + t, vec(f32, 4), mask=k.lanes_below(n, 4)), mask=k.lanes_below(n, 4))

    check(recorded(write), arch, "setp", r"@%p\d+ bra", r"ld\.global\.(nc\.)?v4\.b32", r"st\.global\.v4\.b32",
          r"ld\.global\.(nc\.)?b32", r"st\.global\.b32")


def test_accesses_under_a_mask_in_the_simulator():
    """What is masked out is read as zeros, and nobody touches its address."""

    def write(k, a, b, n, x):
        t = k.thread[0] * 4
        k.store(b + t, k.load(a + t, vec(f32, 4), mask=t < n), mask=t < n + 4)

    a, b = np.arange(1, 13, dtype=np.float32), np.full(16, 7, np.float32)
    simulator.run(recorded(write), a, b, 12, 0.0)
    np.testing.assert_array_equal(b, [*a, 0, 0, 0, 0])


def test_masks_fit_what_they_cover():
    k = Kernel("kernel", threads=32, a=ptr(f32), n=i32)
    a, n = k.args
    with pytest.raises(TypeError, match="the mask of a v4f32 is one i1, or as many as it has elements, not v2i1"):
        k.load(a, vec(f32, 4), mask=k.lanes_below(n, 2))
    with pytest.raises(TypeError, match="the mask of a f32 is one i1, or as many as it has elements, not i32"):
        k.store(a, 1.0, mask=n)


@pytest.mark.parametrize("arch", ARCHS)
def test_hints(arch):
    def write(k, a, b, n, x):
        k.prefetch(a + n)
        k.prefetch(b + n, locality=2)
        k.store(a, x, streaming=True)
        k.store(b, k.broadcast(x, 4), streaming=True)
        k.store(a.as_(f64), k.constant(f64, 1.0), streaming=True)

    check(recorded(write), arch, r"prefetch\.global\.L1", r"prefetch\.global\.L2", r"st\.global\.cs\.b32",
          r"st\.global\.cs\.v4\.b32", r"st\.global\.cs\.b64")


# ---- copies in flight


@pytest.mark.parametrize("arch", COPYING)
@pytest.mark.parametrize("size", [4, 8, 16])
def test_copies_in_flight(arch, size):
    def write(k, a, b, n, x):
        smem, t = k.smem("s", (2, 512), f32), k.thread[0]
        k.cp_async(smem.at(0, t * (size // 4)), a + t * (size // 4), size)
        k.cp_async_commit()
        k.cp_async(smem.at(1, t * (size // 4)), a + t * (size // 4), size, n)
        k.cp_async_commit()
        for pending in (1, 0):
            k.cp_async_wait(pending)
            k.barrier()
            b[t] = smem[1 - pending, n]

    how = "cg" if size == 16 else "ca"      # 16 bytes pass L1 by
    text = check(recorded(write), arch, rf"cp\.async\.{how}\.shared\.global \[%r\d+\], \[%rd\d+\], {size};",
                 rf"cp\.async\.{how}\.shared\.global \[%r\d+\S*\], \[%rd\d+\], {size}, %r\d+;")
    assert text.count("cp.async.commit_group") == 2
    assert re.findall(r"cp\.async\.wait_group\s+(\d)", text) == ["1", "0"]


def test_turing_has_no_copies_in_flight():
    k = Kernel("kernel", threads=32, a=ptr(f32))
    k.cp_async(k.smem("s", (32,), f32), k.args[0], 16)
    k.cp_async_commit()
    k.cp_async_wait()
    with pytest.raises(NotImplementedError) as refused:
        llvm.assembly(k.function, target("sm_75"))
    assert len(str(refused.value).splitlines()) == 3
    assert re.match(r"kernel, test_nvptx.py:\d+: sm_75 has no cp_async16 \(cp\.async\)", str(refused.value))


# ---- clusters


def pair(write, cluster=(1, 1, 2)):
    """A cluster's kernel; write(k, a, t, s) with s an f32 for each of 128 threads in shared memory."""
    k = Kernel("kernel", threads=128, cluster=cluster, a=ptr(f32))
    write(k, k.args[0], k.thread[0], k.smem("s", (128,), f32))
    return k.function


def exchange(k, a, t, s):
    s[t] = a[t]
    k.cluster_barrier()
    k.store(a + t * 4, k.load(k.opaque(k.of_cta(s, 1 - k.cluster_rank)) + t % 32 * 4, vec(f32, 4)))
    k.cluster_barrier()


def test_clusters():
    """The shape is in the code, so that a launch need not know it. Nothing moves across the barrier."""
    arrive, wait = r"barrier\.cluster\.arrive\.aligned;", r"barrier\.cluster\.wait\.aligned;"
    check(pair(exchange), "sm_90a", r"\.explicitcluster", r"\.reqnctapercluster 1, 1, 2", "%cluster_ctarank",
          rf"(?s)st\.shared\.b32.*{arrive}\s+{wait}.*ld\.shared::cluster\.v4\.b32\s.*{arrive}\s+{wait}",
          r"ld\.shared::cluster\.v4\.b32\s+{[^}]+}, \[%r\d+\]",
          r"mapa\.shared::cluster\.u32\s+%r\d+, %r\d+, %r\d+;")
    text = check(pair(lambda k, a, t, s: s.__setitem__(t, a[t])), "sm_90a", r"\.reqnctapercluster 1, 1, 2")
    assert "barrier.cluster" not in text
    check(recorded(lambda k, a, b, n, x: None), "sm_90a", without=["cluster"])


@pytest.mark.parametrize("arch", [arch for arch in ARCHS if arch != "sm_90a"])
def test_chips_without_clusters(arch):
    with pytest.raises(NotImplementedError) as refused:
        llvm.assembly(pair(exchange), target(arch))
    assert f"kernel has clusters of 2 CTAs, and {arch} has no clusters: sm_90 was the first" in str(refused.value)
    assert re.search(rf"test_nvptx.py:\d+: {arch} has no cluster_arrive \(cluster\)", str(refused.value))


@pytest.mark.parametrize("cluster", [(3, 3, 1), (0, 1, 1), (1, 1, 16)])
def test_clusters_that_do_not_fit(cluster):
    with pytest.raises(NotImplementedError, match=r"clusters of \d x \d x \d+ CTAs, and a cluster has from 1 to 8"):
        llvm.assembly(pair(lambda k, a, t, s: None, cluster), target("sm_90a"))


def test_what_other_ctas_memory_cannot_be():
    with pytest.raises(NotImplementedError, match="an atomic access of another CTA's shared memory"):
        llvm.assembly(pair(lambda k, a, t, s: k.atomic_add(k.of_cta(s, 1), 1.0)), target("sm_90a"))
    with pytest.raises(NotImplementedError, match="x points to cluster memory, which has no addresses before"):
        llvm.assembly(Kernel("kernel", threads=32, x=ptr(f32, "cluster")).function, target("sm_90a"))


# ---- textures, atomics, lanes


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("T", "length", "fetched"), [(f32, 4, "f32"), (f64, 2, "s32"), (i32, 4, "s32")])
def test_textures(arch, T, length, fetched):
    k = Kernel("kernel", threads=32, a=Texture(T, length), b=ptr(T))
    a, b = k.args
    t = k.thread[0]
    k.store(b + t * length, k.fetch(a, t))
    check(k.function, arch, rf"tex\.1d\.v4\.{fetched}\.s32", r"st\.global\.v[24]\.b", r"\.param \.u64 kernel_param_0")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("T", "added"), [(f32, "f32"), (f64, "f64"), (i32, "u32"), (i64, "u64")])
def test_atomics(arch, T, added):
    k = Kernel("kernel", threads=32, a=ptr(T), x=T)
    a, x = k.args
    smem = k.smem("s", (4,), T)
    k.atomic_add(a, x, "monotonic")
    k.atomic_add(smem + 1, x, "monotonic")
    check(k.function, arch, rf"(atom|red)\.(\S+\.)?global\.add\.{added}",
          rf"(atom|red)\.(\S+\.)?shared\.add\.{added}", without=["fence", "membar"])
    k.atomic_store(a, k.atomic_add(a + 1, x, "acq_rel"))
    k.atomic_store(a + 3, k.atomic_load(a + 2))
    k.fence_device()
    before, after = (rf"fence\.({half}|acq_rel)\.gpu;" for half in ("release", "acquire"))
    check(k.function, arch, r"st\.release\.gpu\.global\.b", r"ld\.acquire\.gpu\.global\.b", r"membar\.gl;",
          rf"{before}\s+atom\S+add\.{added}[^;]+;\s+{after}",        # LLVM drops the order of an addition
          without=[r"\.sys"])


@pytest.mark.parametrize("arch", ARCHS)
def test_compare_and_swap(arch):
    def write(k, a, b, n, x):
        flag = a.as_(i32)
        with k.while_(lambda: k.atomic_replace(flag, 0, 1) == k.constant(i1, 0)):
            k.fence("acq_rel")
        with k.while_(lambda: k.atomic_load(flag + 1) < n):
            pass
        k.atomic_store(flag, 0)

    check(recorded(write), arch, r"atom\.acquire\.gpu\.global\.cas\.b32", r"ld\.acquire\.gpu\.global\.b32",
          r"st\.release\.gpu\.global\.b32")


def test_what_no_atomic_access_can_be():
    k = Kernel("kernel", threads=32, a=ptr(f32), b=ptr(i1))
    a, b = k.args
    with pytest.raises(TypeError, match="compare and swap compares bits: look at the f32 as an i32"):
        k.atomic_replace(a, 0.0, 1.0)
    with pytest.raises(TypeError, match="an atomic access moves whole bytes, not i1"):
        k.atomic_load(b)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("T", "exchanges"), [(f32, 1), (i32, 1), (f16, 1), (f64, 2), (i64, 2)])
def test_lanes_exchange_words(arch, T, exchanges):
    k = Kernel("kernel", threads=64, a=ptr(T))
    at = k.args[0] + k.thread[0]
    k.store(at, k.lane_xor(at[0], 5))
    text = check(k.function, arch, r"shfl\.sync\.bfly\.b32 [^;]+, 5, 31, -1;|shfl\.sync\.bfly\.b32\s+[^;]+, 5, 31, -1;")
    assert text.count("shfl.sync.bfly.b32") == exchanges
    k.store(at, k.warp_sum(at[0]))
    assert check(k.function, arch).count("shfl.sync") == 6 * exchanges


def test_lanes_that_do_not_exist():
    k = Kernel("kernel", threads=64, a=ptr(f32))
    for mask in (0, 32, -1):
        with pytest.raises(ValueError, match=f"mask must be from 1 to 31, not {mask}"):
            k.lane_xor(k.args[0][0], mask)
    for x in (k.load(k.args[0], vec(f32, 2)), k.args[0], k.args[0].as_(i8)[0]):
        with pytest.raises(TypeError, match="lanes exchange numbers of 16, 32 or 64 bits, not"):
            k.lane_xor(x, 1)


# ---- arithmetic, control


@pytest.mark.parametrize("arch", ARCHS)
def test_arithmetic(arch):
    k = Kernel("kernel", threads=32, a=ptr(f64), b=ptr(f32), n=i32, m=i64)
    a, b, n, m = k.args
    a[0] = k.fma(a[1], a[2], a[3]) + a[4]
    with k.exact():
        b[0] = k.fma(b[1], b[2], b[3]) - b[4] * b[5]
    a[8] = k.cast(b[6], f64)
    b[8] = k.cast(m, f32)
    a.as_(i64)[16] = m * n + 3
    b.as_(i32)[16] = k.cast(b[9], i32) - n * n
    b[10] = k.max(b[11], b[12])
    b[13] = k.select(n < 4, b[14], b[15])
    check(k.function, arch, r"fma\.rn\.f64", r"fma\.rn\.f32", r"mul\.rn\.f32", r"cvt\.f64\.f32", r"cvt\.rn\.f32\.s64",
          r"(mul|mad)\.lo\.s64|mad\.lo\.s64|mul\.wide", r"cvt\.rzi\.s32\.f32", r"(mul|mad)\.lo\.s32", r"selp\.",
          without=[r"ftz", r"approx"])


@pytest.mark.parametrize("arch", ARCHS)
def test_division_of_indices(arch):
    """By powers of two it is a shift and a mask; nothing asks for the sign."""
    k = Kernel("kernel", threads=256, a=ptr(i32), n=i32)
    a, n = k.args
    t = k.thread[0] + k.block[0] * 256
    a[0], a[1] = t // 32, t % 32
    check(k.function, arch, "shr.u32", "and.b32", without=["div", "rem", r"shr\.s32"])
    a[2], a[3] = n // 7, n % 7
    check(k.function, arch, r"mul\.hi\.u32", without=["div", "rem"])
    a[4] = t // n
    check(k.function, arch, r"div\.u32")


@pytest.mark.parametrize("arch", ARCHS)
def test_loops(arch):
    def write(unroll):
        def write(k, a, b, n, x):
            total = k.variable(f32, 0.0)
            with k.loop(n, unroll=unroll) as i:
                total.set(k.fma(a[i], x, total.get()))
            with k.while_(lambda: total.get() > 1.0):
                total.set(total.get() * 0.5)
            with k.when(n > 3):
                b[0] = total.get()
            with k.otherwise():
                b[1] = total.get()
        return write

    text = check(recorded(write(True)), arch, r"@%p\d+ bra", r"fma\.rn\.f32", without=["nounroll"])
    assert text.count("fma.rn.f32") == 1
    text = check(recorded(write(False)), arch, r'\.pragma "nounroll"')
    assert text.count("nounroll") == 1


@pytest.mark.parametrize("arch", ARCHS)
def test_a_kernel_calls_functions(arch):
    """A small one becomes part of the kernel; it may wait at a barrier of the CTA."""
    inner = Kernel("scaled", x=f32, p=ptr(f32), i=i32, result=f32)
    x, p, i = inner.args
    inner.barrier()
    inner.ret(x * p[i])

    def write(k, a, b, n, x):
        b[k.thread[0]] = k.call(inner.function, x, a, k.thread[0])

    check(recorded(write), arch, r"bar\.sync", r"mul\.rn\.f32", without=["call", r"\.func"])


@pytest.mark.parametrize("arch", ARCHS)
def test_an_opaque_value_stays_in_its_register(arch):
    def write(k, a, b, n, x):
        k.store(k.opaque(b), k.opaque(x) * k.cast(k.opaque(n), f32))
        k.store(k.opaque(k.smem("s", (8,), f32)) + n, k.cast(k.opaque(a.as_(f64)[0]), f32))

    check(recorded(write), arch, "begin inline asm")


# ---- lines


@pytest.mark.parametrize("arch", ARCHS)
def test_lines_reach_the_profiler(arch):
    def write(k, a, b, n, x):
        with k.loop(n) as i:
            b[i] = doubled(a[i])

    function = recorded(write)
    text = llvm.assembly(function, target(arch), lines=True)
    files = dict(re.findall(r'\.file\s+(\d+) "([^"]+)"', text))
    assert {os.path.basename(path) for path in files.values()} == {"test_nvptx.py", "emitted_elsewhere.py"}
    first = write.__code__.co_firstlineno
    located = {(os.path.basename(files[file]), int(line)) for file, line in re.findall(r"\.loc\s+(\d+) (\d+)", text)}
    assert {("test_nvptx.py", first + 1), ("test_nvptx.py", first + 2), ("emitted_elsewhere.py", 8)} <= located
    plain = llvm.assembly(function, target(arch))
    assert ".loc" not in plain
    instructions = [re.findall(r"^\t([a-z@][^;]*);", t, re.M) for t in (text, plain)]
    assert instructions[0] == instructions[1]       # lines cost nothing
    ptxas.assemble(text, arch, options=("-lineinfo",))


def test_lines_of_several_kernels_in_one_module():
    functions = []
    for name in ("one", "two"):
        k = Kernel(name, threads=32, a=ptr(f32))
        k.args[0][k.thread[0]] = 1.0
        functions.append(k.function)
    assert llvm.assembly(functions, target("sm_90a"), lines=True).count(".loc") >= 2


# ---- the gate


@pytest.mark.sampled(2)
@pytest.mark.parametrize("arch", ARCHS)
def test_llvm_and_ptxas_take_what_the_gate_lets_through(arch, request):
    """Every operation on every type, with --all-ways of every length. In a child process: LLVM ends the process on what
    it cannot select. Of sm_86 and sm_89 ptxas is given what sm_80 does not take: it assembles PTX for any later
    architecture."""
    some = not request.config.getoption("--all-ways")
    said = printed(f"""
from tests.helpers.every_operation import cases
from tilewright.compiler import gate, llvm, ptxas; from tilewright.targets import target
t = target({arch!r}); every = [function for _, functions in cases({some}) for function in functions]
taken = [function for function in every if not list(gate.refusals(function, t))]
assert 0.4 * len(every) < len(taken) < 0.7 * len(every), (len(taken), len(every))
text = llvm.assembly(taken, t)
assert text.count(".entry") == len(taken)
if t.name in ("sm_86", "sm_89"):
    taken = [function for function in taken if list(gate.refusals(function, target("sm_80")))]
    text = llvm.assembly(taken, t) if taken else ""
try: assert not taken or len(ptxas.assemble(text, t.name)[1]) == len(taken)
except ptxas.Missing: print("no ptxas")
""")
    if "no ptxas" in said:
        pytest.skip("ptxas is not installed: the PTX was written, but not assembled")


def refusals(k, arch="sm_90a"):
    return "\n".join(gate.refusals(k.function if isinstance(k, Kernel) else k, target(arch)))


def test_a_gpu_runs_kernels_and_a_cpu_does_not():
    k = Kernel("one", a=ptr(f32))
    assert refusals(k) == "one is written for one thread of a CPU, and sm_90a is a GPU: it runs CTAs"
    k = Kernel("textured", a=Texture(f32))
    assert refusals(k, "neon") == "textured: a is a texture, and neon is a CPU"
    k = Kernel("grid", threads=32, a=ptr(f32))
    k.fence_device()
    assert "fence_device is for GPUs, and neon is a CPU" in refusals(k, "neon")


def test_what_is_launched():
    with pytest.raises(ValueError, match="a CTA has at most 1024 threads on every GPU"):
        Kernel("grid", threads=(64, 32))
    assert "warps of 64 lanes, and sm_90a has warps of 32" in refusals(Kernel("grid", threads=64, warp=64))
    k = Kernel("grid", threads=512, min_ctas=4)
    assert refusals(k) == ""
    assert refusals(k, "sm_86") == "grid asks for 4 CTAs of 512 threads on a multiprocessor, and one of sm_86 holds 3"
    assert "grid asks for 300 registers a thread, and sm_90a gives from 16 to 255" in refusals(
        Kernel("grid", threads=32, max_registers=300))
    assert "grid returns i32, and a GPU kernel returns nothing" in refusals(Kernel("grid", threads=32, result=i32))
    for name in ("a.b", "a-b", "7up", "größe", ""):
        assert f"{name!r} cannot be the name of a GPU kernel" in refusals(Kernel(name, threads=32))
    for name in ("_x", "$y", "gemm_f32_128x128x8", "add"):
        assert refusals(Kernel(name, threads=32)) == ""


def test_parameters():
    assert "s points to shared memory, which has no addresses" in refusals(
        Kernel("g", threads=32, s=ptr(f32, "shared")))
    assert "v is a v4f32, and a kernel takes numbers, addresses, textures and tensor maps" in refusals(
        Kernel("g", threads=32, v=vec(f32, 4)))
    assert "t is a texture of v2f32, and a texel is v4f32 or v4i32 or v2f64" in refusals(
        Kernel("g", threads=32, t=Texture(f32, 2)))
    assert refusals(Kernel("g", threads=32, **{f"p{i}": i64 for i in range(4095)})) == ""
    assert "g has 32768 bytes of parameters, and sm_90a takes 32764" in refusals(
        Kernel("g", threads=32, **{f"p{i}": i64 for i in range(4096)}))
    mixed = Kernel("g", threads=32, **{f"p{i}": i64 if i % 2 else i8 for i in range(4096)})
    assert "g has 32768 bytes" in refusals(mixed)       # each i8 is followed by seven bytes of nothing


def test_memory_that_is_not_there():
    k = Kernel("g", threads=32)
    k.smem("s", (25 << 10,), f32)
    assert refusals(k) == ""
    assert refusals(k, "sm_86") == "g needs 102400 bytes of shared memory, and sm_86 gives a CTA 101376"
    k = Kernel("g", threads=32, a=ptr(f32))
    k.local("l", (1 << 17,), f32)
    assert refusals(k) == ""
    k.local("m", (1,), f32)
    assert refusals(k) == "g has 524292 bytes of local arrays, and a thread of sm_90a can have 524288"
    k = Kernel("g", threads=32, a=ptr(f32), n=i32)
    k.atomic_add(k.local("l", (4,), f32) + k.args[1], 1.0, "monotonic")
    assert "an atomic access of local memory: no other thread can see it" in refusals(k)


def test_functions_that_are_called():
    k = Kernel("inner", threads=32)
    outer = Kernel("outer", threads=32)
    outer.call(k.function)
    assert refusals(outer) == "inner is a kernel: it can be launched, not called"
    k = Kernel("inner")
    k.smem("s", (4,), f32)
    outer = Kernel("outer", threads=32)
    outer.call(k.function)
    assert refusals(outer) == "inner: s is shared memory, which only kernels can have, not functions that they call"
    outer = Kernel("outer", threads=32, p=ptr(i8))
    outer.call(outer.args[0])
    outer.call_external("abort", None)
    assert refusals(outer).count("a GPU kernel can call recorded functions only") == 2


def test_types_that_are_not_there():
    k = Kernel("g", threads=32, a=ptr(f32), h=ptr(bf16))
    a, h = k.args
    k.load(a, vec(f32, 8), 4)
    k.load(a, vec(f32, 3), 4)
    h[0] = h[1] + h[2]
    said = refusals(k)
    assert "v8f32 is a vector of 256 bits, and a thread of sm_90a handles 128 at once" in said
    assert "v3f32 has 3 elements, and vectors on sm_90a have 1, 2, 4, 8 ... of them" in said
    assert "sm_90a has no bf16 arithmetic in this version, so no add of bf16: cast to f32 first" in said
    k = Kernel("g", threads=32, a=ptr(i1), n=i32)
    k.store(k.args[0], k.lanes_below(k.args[1], 4))
    k.opaque(k.lanes_below(k.args[1], 4))
    assert "v4i1 has no form in memory: its elements are bits" in refusals(k)
    assert "v4i1 does not fit one register, so it cannot be opaque" in refusals(k)


def test_instructions_of_cpus():
    k = Kernel("g", threads=32, a=ptr(f32))
    k.pause()
    k.prefetch(k.smem("s", (4,), f32))
    said = refusals(k)
    assert re.search(r"g, test_nvptx.py:\d+: sm_90a has no pause \(an instruction of CPUs\)", said)
    assert "only global memory can be prefetched, not shared memory" in said


def test_equal_records_lead_to_equal_code():
    t = target("sm_90a")
    other = dataclasses.replace(t, model="another", sms=1)
    assert t.code_key == other.code_key
    k = Kernel("g", threads=32, a=ptr(i16))
    k.args[0][k.thread[0]] = 3
    assert llvm.assembly(k.function, t) == llvm.assembly(k.function, other)
