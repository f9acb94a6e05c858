"""Hopper's matrix instructions of a warpgroup: every format, shape and way for operands to lie in shared memory gives
the product in the simulator and assembles; and every way to touch something too early is found."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.helpers.assembled import assembled
from tilewright import simulator
from tilewright.atoms.fragment import ROUNDED
from tilewright.atoms.wgmma import SharedMatrix, Wgmma, columns, swizzled
from tilewright.formats import get
from tilewright.ir import Kernel, f16, f32, i8, i32, ptr, vec
from tilewright.simulator import Fault

WIDE = {"f32": np.float32, "f16": np.float16, "i32": np.int32}
ONE_TWICE = 0x3c003c00      # two f16
SUMS = {"f32": f32, "f16": f16, "i32": i32}


def matrices(atom, steps=1, seed=0):
    """Integer-valued A [64, k] and B [n, k], so that sums are exact."""
    rng = np.random.default_rng(seed)
    low = 0 if "u8" in (atom.a, atom.b) else -4
    return [rng.integers(low, 5, (extent, atom.k * steps)).astype(get(ROUNDED.get(format, format)).dtype)
            for extent, format in ((64, atom.a), (atom.n, atom.b))]


def laid_out(x, layout, k, size):
    """The bytes of a matrix [extent, k] as the descriptor says, by element and without the code under test."""
    found, item = np.zeros(size, np.uint8), x.dtype.itemsize
    row = layout.swizzle or 16
    for (i, p), value in np.ndenumerate(x):
        if layout.major == "k":
            byte = p * item
            if layout.swizzle:
                at = i // 8 * layout.stride + i % 8 * row + byte
            else:
                at = i // 8 * layout.stride + i % 8 * row + byte // 16 * layout.leading + byte % 16
        elif layout.swizzle:
            byte = i * item
            at = byte // row * layout.leading + byte % row + p % 8 * row + p // 8 * layout.stride
        else:
            at = i * item // 16 * layout.stride + i * item % 16 + p % 8 * 16 + p // 8 * layout.leading
        piece = at // 16
        if layout.swizzle:
            piece ^= at // 128 % (layout.swizzle // 16)
        found[piece * 16 + at % 16:][:item] = np.frombuffer(value.tobytes(), np.uint8)
    return found


def sizes(layout, extent):
    """Bytes of a matrix in shared memory."""
    return int(layout.offsets(extent).max()) + 16 + layout.repeat


def product(atom, add=True, steps=1, a_step=0, b_step=0, fence=True, commit=True, wait=True, touch="", size=None,
            shift=0, align=1024, groups=1):
    """One warpgroup: bytes of A and B go to shared memory, D to global memory. The keywords plant mistakes."""
    size = size or [sizes(layout or SharedMatrix(), extent) for layout, extent in
                    ((atom.a_layout, 64), (atom.b_layout, atom.n))]
    element = SUMS[atom.d]
    k = Kernel("product", threads=128, a=ptr(i8), b=ptr(i8), d=ptr(element), fragments=ptr(i32))
    a, b, d, fragments = k.args
    t = k.thread[0]
    shared = []
    for name, x, count in (("sa", a, size[0]), ("sb", b, size[1])):
        s = k.smem_bytes(name, -(-count // 2048) * 2048, align)
        for at in range(0, count, 2048):
            k.store(s + at + t * 16, k.load(x + at + t * 16, vec(i8, 16)))
        shared.append(s)
    k.fence_async()
    k.barrier()
    acc = k.tile(1, atom.registers, atom.sum, zero=False)
    for r in range(atom.registers):
        acc[0, r] = ONE_TWICE if atom.d == "f16" else 1
    words = [fragments[t * 4 * steps + e] for e in range(4 * steps)]
    if fence:
        k.wgmma_fence(acc)
    for step in range(steps):
        first = words[step * 4:step * 4 + 4] if atom.a_layout is None else shared[0] + (a_step * step + shift)
        k.wgmma(atom, acc, first, shared[1] + b_step * step, add if step == 0 else True)
        if groups > 1:
            k.wgmma_commit()
    if commit and groups == 1:
        k.wgmma_commit()
    if touch == "shared":
        k.store(shared[1] + t * 16, k.load(b + t * 16, vec(i8, 16)))
    if touch == "a":
        fragments[t] = words[0] + 1
    if wait:
        k.wgmma_wait(groups - 1, acc)
    pairs = 2 if atom.d == "f16" else 1
    for e in range(atom.registers * pairs):
        row = t // 32 * 16 + t % 32 // 4 + e // 2 % 2 * 8
        column = e // 4 * 8 + t % 4 * 2 + e % 2
        value = acc[0, e // pairs]
        d[row * atom.n + column] = value if pairs == 1 else k.reinterpret(value, vec(f16, 2))[e % 2]
    return k.function


def fragments(atom, a):
    """A's registers of each lane, as the manual draws them: [128 * 4 * steps] words."""
    numbers = 4 // a.dtype.itemsize
    found = np.zeros((128, a.shape[1] // atom.k, 4, numbers), a.dtype)
    for t in range(128):
        for step in range(found.shape[1]):
            for r in range(4):
                row = t // 32 * 16 + t % 32 // 4 + r % 2 * 8
                first = step * atom.k + t % 4 * numbers + r // 2 * 4 * numbers
                found[t, step, r] = a[row, first:first + numbers]
    return found.view(np.int32).ravel()


def run(atom, a=None, b=None, steps=1, **options):
    if a is None:
        a, b = matrices(atom, steps)
    function = product(atom, steps=steps, **options)
    given = []
    for x, layout in ((a, atom.a_layout), (b, atom.b_layout)):
        layout = layout or SharedMatrix()
        room = -(-sizes(layout, len(x)) // 2048) * 2048
        given.append(laid_out(x, layout, atom.k, room).view(np.int8))
    d = np.zeros((64, atom.n), WIDE[atom.d])
    report = simulator.run(function, *given, simulator.uninitialised(d),
                           fragments(atom, a) if atom.a_layout is None else np.zeros(512 * steps, np.int32))
    return a, b, d, report


def check(atom, **options):
    a, b, d, report = run(atom, **options)
    sign = -1 if atom.negate_a != atom.negate_b else 1
    exact = sign * (a.astype(np.float64) @ b.astype(np.float64).T) + (1 if options.get("add", True) else 0)
    np.testing.assert_array_equal(d.astype(np.float64), exact)
    return report


K_MAJOR = [SharedMatrix(swizzle, "k", 8 * swizzle) for swizzle in (128, 64, 32)] + [
    SharedMatrix(0, "k", 128, 2048), SharedMatrix(0, "k", 256, 128), SharedMatrix(128, "k", 2048)]
MN_MAJOR = [SharedMatrix(swizzle, "mn", 2048, 8 * swizzle if swizzle < 128 else 4096) for swizzle in (128, 64, 32)] + [
    SharedMatrix(0, "mn", 128, 1024), SharedMatrix(0, "mn", 512, 128)]


@pytest.mark.parametrize(("a", "b", "d"), [
    ("f16", "f16", "f32"), ("f16", "f16", "f16"), ("bf16", "bf16", "f32"), ("tf32", "tf32", "f32"),
    ("e4m3fn", "e5m2", "f32"), ("e5m2", "e4m3fn", "f16"),
    ("i8", "i8", "i32"), ("u8", "i8", "i32"), ("i8", "u8", "i32")])
@pytest.mark.parametrize("registers", [False, True])
def test_formats(a, b, d, registers):
    report = check(Wgmma(24, a, b, d, None if registers else SharedMatrix(), SharedMatrix(64, stride=512)))
    atom = Wgmma(24, a, b, d)
    assert report.flops == (2 * 64 * 24 * atom.k if d != "i32" else 0)
    assert report.of("sb", "load").bytes == 24 * 32
    assert report.of("sa", "load").bytes == (0 if registers else 64 * 32)


@pytest.mark.parametrize("layout", [*K_MAJOR, *MN_MAJOR], ids=str)
def test_layouts_in_shared_memory(layout):
    check(Wgmma(40, "bf16", "bf16", "f32", layout, SharedMatrix()))
    check(Wgmma(64, "f16", "f16", "f16", SharedMatrix(), layout))
    assert SharedMatrix.decoded(layout.bits, layout.major) == layout


@pytest.mark.parametrize("registers", [False, True])
def test_steps_of_k_and_groups(registers):
    """Two steps inside the rows of a swizzle, also as groups of which the first is waited for alone."""
    atom = Wgmma(16, "bf16", "bf16", "f32", None if registers else SharedMatrix(), SharedMatrix())
    check(atom, steps=2, a_step=32, b_step=32)
    check(atom, steps=2, a_step=32, b_step=32, add=False)


def test_negated_operands():
    check(Wgmma(8, negate_a=True))
    check(Wgmma(8, negate_a=True, negate_b=True))


def test_swizzles_are_those_of_cutlass():
    """Swizzle<3, 4, 3> and the smaller ones, by bits of the address."""
    for swizzle, bits in ((128, 3), (64, 2), (32, 1), (0, 0)):
        for address in range(0, 4096, 16):
            row = address >> 7 & (1 << bits) - 1
            assert swizzled(address, swizzle) == address ^ row << 4


# ---- the machine code

@pytest.mark.parametrize("atom", [
    Wgmma(256), Wgmma(128, "f16", "f16", "f16"), Wgmma(96, "f16", "f16", "f32", None, MN_MAJOR[0]),
    Wgmma(64, "tf32", "tf32", "f32"), Wgmma(8, "e4m3fn", "e5m2", "f16", None), Wgmma(240, "e5m2", "e5m2"),
    Wgmma(24, "i8", "u8", "i32"), Wgmma(8, a_layout=MN_MAJOR[3], b_layout=MN_MAJOR[1], negate_a=True)],
    ids=lambda atom: atom.name)
def test_spelling(atom):
    """ptxas takes it, and finds no reason to wait after every product (C7510 to C7519)."""
    text, said = assembled(product(atom, steps=2, a_step=32 if atom.a_layout else 0, b_step=32))
    assert atom.name in text
    assert "wgmma.fence.sync.aligned" in text
    assert "wgmma.wait_group.sync.aligned 0" in text
    assert not re.search(r"C75\d\d|serialized", said), said
    assert "0 bytes spill stores" in said


def test_ptxas_serialises_what_touches_sums_too_early():
    """So that its silence above means something."""
    atom = Wgmma(32)
    k = Kernel("early", threads=128, d=ptr(f32))
    s = k.smem_bytes("s", 16384, 1024)
    acc = k.tile(1, atom.registers, f32)
    k.wgmma_fence()
    k.wgmma(atom, acc, s, s)
    k.wgmma_commit()
    k.args[0][0] = acc[0, 0]
    k.wgmma_wait(0, acc)
    for e in range(atom.registers):
        k.args[0][k.thread[0] * atom.registers + e] = acc[0, e]
    assert re.search(r"C75\d\d|serialized", assembled(k.function)[1])


# ---- mistakes that show when the kernel runs

ATOM = Wgmma(16)


def faults(message, atom=ATOM, **options):
    with pytest.raises(Fault, match=message):
        run(atom, **options)


def test_no_fence():
    faults(r"unfenced at test_wgmma.py:\d+ in product: no k.wgmma_fence\(\)", fence=False)
    faults(r"unfenced at test_wgmma.py", Wgmma(16, a_layout=None), fence=False)


def test_sums_before_the_wait():
    faults(r"in flight at test_wgmma.py:\d+ .*no k.wgmma_wait\(\) has returned", wait=False)
    faults(r"in flight at test_wgmma.py:\d+ ", commit=False)
    faults(r"in flight at test_wgmma.py:\d+ ", steps=2, a_step=32, b_step=32, groups=2)


def test_registers_of_a_before_the_wait():
    faults(r"in flight at test_wgmma.py:\d+ ", Wgmma(16, a_layout=None), touch="a")


def test_shared_memory_before_the_wait():
    faults(r"race at test_wgmma.py:\d+ in product: store of sb\[\d+\] by .*: a product started at "
           r"test_wgmma.py:\d+ by .* may still be reading it asynchronously", touch="shared")


@pytest.mark.parametrize(("layout", "options", "message"), [
    (SharedMatrix(), {"shift": 8}, "it is 8 bytes after a multiple of 1024"),
    (SharedMatrix(), {"shift": 128}, "it is 128 bytes after a multiple of 1024, where a swizzle of 128 bytes begins"),
    (SharedMatrix(64, stride=512), {"shift": 48}, "it is 48 bytes after a multiple of 512"),
    (MN_MAJOR[0], {"shift": 32}, "it is 32 bytes after a multiple of 1024"),
    (SharedMatrix(0, stride=128, leading=2048), {"shift": 8}, "must be a multiple of 16 bytes"),
    (SharedMatrix(), {"align": 512}, "sb is aligned to 512 bytes, and a swizzle of 128 bytes repeats every 1024"),
])
def test_misplaced_matrices(layout, options, message):
    faults(f"misaligned at test_wgmma.py:.*{message}", Wgmma(16, a_layout=layout), **options)


def test_strides_that_leave_the_array():
    faults("out of bounds at .*load of sa.*it has 4096 bytes", size=[4096, 4096])


def small(body, threads=128):
    """A kernel on 4096 bytes that are written, with a tile of sums."""
    k = Kernel("small", threads=threads, d=ptr(f32))
    s = k.smem_bytes("s", 8192, 1024)
    t = k.thread[0]
    with k.when(t < 128):
        for at in range(0, 8192, 2048):
            k.store(s + at + t * 16, k.broadcast(k.constant(i8, 0), 16))
    body(k, s, t, k.tile(1, ATOM.registers, f32))
    return k.function


def small_faults(message, body, **options):
    with pytest.raises(Fault, match=message):
        simulator.run(small(body, **options), np.zeros(4096, np.float32))


def whole(k, s, acc, wait=True):
    k.wgmma_fence()
    k.wgmma(ATOM, acc, s, s, add=False)
    k.wgmma_commit()
    if wait:
        k.wgmma_wait(0, acc)


def test_no_proxy_fence():
    def body(k, s, t, acc):
        k.barrier()
        whole(k, s, acc)
    small_faults(r"race at test_wgmma.py:\d+ in small: load of s\[0\] .*written at test_wgmma.py:\d+ by block \(0, 0\) "
                 r"thread \(0, 0\), and no k.fence_async\(\) follows", body)

    def too_early(k, s, t, acc):
        k.fence_async()
        k.store(s + t * 16, k.broadcast(k.constant(i8, 0), 16))
        k.barrier()
        whole(k, s, acc)
    small_faults("no k.fence_async", too_early)

    def by_the_reader(k, s, t, acc):
        k.barrier()
        k.fence_async()
        whole(k, s, acc)
    simulator.run(small(by_the_reader), np.zeros(4096, np.float32))


def test_no_barrier():
    def body(k, s, t, acc):
        k.fence_async()
        whole(k, s, acc)
    small_faults(r"race at .*load of s.*written at .*nothing orders the two", body)


def test_a_product_that_is_never_waited_for():
    def body(k, s, t, acc):
        k.fence_async()
        k.barrier()
        whole(k, s, acc, wait=False)
    small_faults("in flight at test_wgmma.py:.*ends before this product is waited for", body)


def test_warps_that_stay_away():
    def some(k, s, t, acc):
        k.fence_async()
        k.barrier()
        with k.when(t < 96):
            whole(k, s, acc)
    small_faults(r"deadlock .*a group of wgmma of block \(0, 0\): 96 of 128 threads have arrived", some)

    def lanes(k, s, t, acc):
        k.fence_async()
        k.barrier()
        with k.when(t % 2 == 0):
            whole(k, s, acc)
    small_faults(r"divergent at .*wgmma.fence takes all threads of a warpgroup", lanes)


def test_overwriting_after_the_wait_of_others():
    """One warp of another warpgroup overwrites what four have read: their wait has to be ordered before it."""
    def kernel(ordered):
        def body(k, s, t, acc):
            k.fence_async()
            k.barrier()
            with k.role("math", warps=4):
                whole(k, s, acc)
            if ordered:
                k.barrier()
            with k.role("other", warps=1):
                k.store(s + t % 32 * 16, k.broadcast(k.constant(i8, 1), 16))
        return small(body, threads=160)
    simulator.run(kernel(True), np.zeros(4096, np.float32))
    with pytest.raises(Fault, match=r"race at .*store of s\[0\]"):
        simulator.run(kernel(False), np.zeros(4096, np.float32))


# ---- mistakes that show when the kernel is recorded

@pytest.mark.parametrize(("arguments", "message"), [
    ({"n": 12}, "n must be one of 8, 16, 24"), ({"n": 264}, "not 264"),
    ({"n": 40, "a": "i8", "b": "i8", "d": "i32"}, "n must be one of 8, 16, 24, 32, 48, 64.* for i8, not 40"),
    ({"n": 8, "a": "bf16", "b": "f16"}, "no products of bf16 and f16"),
    ({"n": 8, "a": "f64", "b": "f64"}, "no products of f64 and f64"),
    ({"n": 8, "d": "f16"}, "products of bf16 are added up in f32, not in f16"),
    ({"n": 8, "a": "tf32", "b": "tf32", "b_layout": MN_MAJOR[0]}, "tf32 has 32 bits, and only numbers of 16 bits"),
    ({"n": 8, "a_layout": SharedMatrix(96)}, "128, 64 or 32 bytes, or of 0, which is none, not of 96"),
    ({"n": 8, "a_layout": SharedMatrix(major="m")}, "major must be"),
    ({"n": 8, "a_layout": SharedMatrix(stride=512)}, "stride must be a multiple of 1024 bytes .* repeats every 1024"),
    ({"n": 8, "b_layout": SharedMatrix(0, stride=8)}, "stride must be a multiple of 16 bytes"),
    ({"n": 8, "a": "i8", "b": "i8", "d": "i32", "negate_a": True}, "integers cannot be negated"),
])
def test_what_the_instruction_set_lacks(arguments, message):
    with pytest.raises(ValueError, match=message):
        Wgmma(**arguments)


def test_every_n():
    for a, b, d in (("bf16", "bf16", "f32"), ("e4m3fn", "e4m3fn", "f32"), ("i8", "u8", "i32")):
        for n in columns(a):
            assert Wgmma(n, a, b, d).registers == n // 2


def mistake(error, message, body, threads=128):
    with pytest.raises(error, match=message):
        small(body, threads=threads)


def test_mistakes_in_recording():
    mistake(ValueError, "adds to 8 registers of f32 in each lane, and acc has 4 of f32",
            lambda k, s, t, acc: k.wgmma(ATOM, k.tile(1, 4, f32), s, s))
    mistake(TypeError, "takes an operand from shared memory, not a global f32",
            lambda k, s, t, acc: k.wgmma(ATOM, acc, k.args[0], s))
    mistake(TypeError, "takes A in 4 registers of i32, not in i32, i32",
            lambda k, s, t, acc: k.wgmma(Wgmma(16, a_layout=None), acc, [t, t], s))
    mistake(SyntaxError, "executed by whole warpgroups.*the CTA has warps 0 to 2", lambda k, s, t, acc:
            k.wgmma_fence(), threads=96)
    mistake(TypeError, "sums that are passed together have one type, not f32, i32",
            lambda k, s, t, acc: k.wgmma_wait(0, acc, k.tile(1, 2, i32)))
    mistake(ValueError, "pending must be a Python number from 0 to 7, not 8", lambda k, s, t, acc: k.wgmma_wait(8, acc))
    mistake(ValueError, 'space must be "shared" or "global"', lambda k, s, t, acc: k.fence_async("local"))

    def shifted(k, s, t, acc):
        with k.role("one", warps=1):
            pass
        with k.role("math", warps=4):
            k.wgmma_commit()
    mistake(SyntaxError, "math has warps 1 to 4", shifted, threads=160)

    def sums(k, s, t, acc):
        k.wgmma_fence()
        acc[0, 3] = 0
        k.wgmma(ATOM, acc, s, s)
    mistake(SyntaxError, r"a register of D is written after the last k.wgmma_fence\(\)", sums)

    def fragments(k, s, t, acc):
        k.wgmma_fence()
        k.wgmma(Wgmma(16, a_layout=None), acc, [t + e for e in range(1, 5)], s)
    mistake(SyntaxError, r"a register of A is written after the last k.wgmma_fence\(\)", fragments)
