"""Block programs on every kind of target: whole kernels beside NumPy in float64, and what each part says when asked for
what it does not do."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.block_programs import layer_norm, matmul, softmax
from tilewright import simulator, targets
from tilewright.blocks import Program
from tilewright.compiler.llvm import assembly
from tilewright.ir import bf16, f16, f32, i8, i32, i64, ptr
from tilewright.runtime.run import run

TARGETS = ["x86-avx2", "sm_75", "sm_80", "sm_90a", "gfx942", "gfx950"]
DTYPES = {f32: np.float32, f16: np.float16, bf16: ml_dtypes.bfloat16, i8: np.int8}


def exact_softmax(x):
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def exact_norm(x, w, b, eps=1e-5):
    x, w, b = (y.astype(np.float64) for y in (x, w, b))
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + eps) * w + b


# ---- whole programs


@pytest.mark.parametrize("name", TARGETS)
def test_softmax(name):
    x = np.random.default_rng(0).normal(0, 5, (3, 100)).astype(np.float32)
    y = np.full_like(x, np.nan)
    simulator.run(softmax(name), y, x, 100, 100, grid=3)
    assert np.abs(y - exact_softmax(x)).max() < 1e-7


@pytest.mark.parametrize("name", TARGETS)
def test_layer_norm(name):
    rng = np.random.default_rng(0)
    x, (w, b) = rng.normal(size=(3, 100)).astype(np.float32), rng.normal(size=(2, 100)).astype(np.float32)
    y = np.full_like(x, np.nan)
    simulator.run(layer_norm(name), y, x, w, b, 100, 1e-5, grid=3)
    assert np.abs(y - exact_norm(x, w, b)).max() < 2e-6


@pytest.mark.parametrize("rows", [1, 7])
def test_programs_run_on_this_machine(rows):
    rng = np.random.default_rng(1)
    x, (w, b) = rng.normal(size=(rows, 100)).astype(np.float32), rng.normal(size=(2, 100)).astype(np.float32)
    y = np.full_like(x, np.nan)
    run(softmax(BLOCK=512), y, x, 100, 100, grid=rows)
    assert np.abs(y - exact_softmax(x)).max() < 1e-7
    run(layer_norm(BLOCK=256), y, x, w, b, 100, 1e-5, grid=(rows,))
    assert np.abs(y - exact_norm(x, w, b)).max() < 2e-6


@tw.kernel(BLOCK=(64, 128), NUM_WARPS=(1, 2), grid=lambda x_ptr, stride: x_ptr.size // stride)
def emit_softmax(target=None, BLOCK=128, NUM_WARPS=2):
    return softmax(target, BLOCK, NUM_WARPS)


def test_constants_of_a_program_are_tuned():
    x = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    y = np.full_like(x, np.nan)
    emit_softmax(y, x, 64, 64)
    assert np.abs(y - exact_softmax(x)).max() < 1e-7
    found = tw.tune(emit_softmax, y, x, 64, 64, target="sm_80")
    assert found.best == {"BLOCK": 64, "NUM_WARPS": 1}
    with pytest.raises(NotImplementedError, match="emit_softmax is a block program, which is tuned for GPUs"):
        tw.tune(emit_softmax, y, x, 64, 64)


def product(T, M, N, K):
    rng = np.random.default_rng(M + K)
    a, b = rng.integers(-4, 5, (M, K)), rng.integers(-4, 5, (K, N))
    return a.astype(DTYPES[T]), b.astype(DTYPES[T]), np.full((M, N), -77, np.int32 if T is i8 else np.float32), a @ b


def simulated(name, T, M, N, K, TA=False, TB=False, BLOCK_M=32, BLOCK_N=32, **constants):
    a, b, c, wanted = product(T, M, N, K)
    constants |= {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N}
    a, b = np.ascontiguousarray(a.T) if TA else a, np.ascontiguousarray(b.T) if TB else b
    f = matmul(name, T=T, TA=TA, TB=TB, **constants)
    grid = -(-M // BLOCK_M) * -(-N // BLOCK_N)
    report = simulator.run(f, a, b, c, M, N, K, M if TA else K, K if TB else N, N, grid=grid)
    assert (c == wanted).all()
    return report


@pytest.mark.parametrize("T", [f32, f16, i8], ids=str)
@pytest.mark.parametrize("name", TARGETS[1:])
def test_products(name, T):
    simulated(name, T, 37, 61, 50)


@pytest.mark.parametrize("name", ["sm_80", "gfx942"])
def test_products_of_bf16(name):
    simulated(name, bf16, 37, 61, 50)


@pytest.mark.parametrize(("T", "precision"), [(f16, "ieee"), (f32, "tf32"), (f32, "ieee"), (i8, "ieee")], ids=str)
@pytest.mark.parametrize("TB", [False, True])
@pytest.mark.parametrize("TA", [False, True])
def test_operands_that_are_stored_transposed(TA, TB, T, precision):
    simulated("sm_80", T, 32, 64, 64, TA, TB, EVEN=16, PRECISION=precision)


@pytest.mark.parametrize("warps", [1, 8])
def test_warps_divide_products(warps):
    simulated("sm_80", f16, 32, 32, 32, NUM_WARPS=warps)
    simulated("gfx942", f16, 32, 32, 32, NUM_WARPS=warps)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_operands_are_copied_ahead(stages):
    """Of which nothing but products is made, and whose rows are aligned."""
    report = simulated("sm_80", f16, 32, 40, 72, NUM_STAGES=stages, EVEN=8)
    assert report.instructions["cp.async"] > 0


@pytest.mark.parametrize(("T", "TA", "TB", "how"), [
    (f16, False, False, {"BLOCK_K": 128}), (bf16, True, False, {"BLOCK_N": 128, "NUM_WARPS": 8}),
    (f16, True, True, {"NUM_STAGES": 1}), (i8, False, True, {"BLOCK_M": 128, "EVEN": 16})], ids=str)
def test_warpgroups_multiply_from_shared_memory(T, TA, TB, how):
    """On Hopper, where a CTA has whole warpgroups and at least 64 rows: K ends inside a block."""
    how = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "NUM_WARPS": 4, "NUM_STAGES": 3, "EVEN": 8} | how
    report = simulated("sm_90a", T, 80, 80, 144, TA, TB, **how)
    assert report.instructions["wgmma"] > 0


@pytest.mark.parametrize(("body", "waits"), [("adds", {0: 1, 1: 1}), ("looks", {0: 1}), ("keeps", {0: 1}),
                                             ("twice", {0: 1})])
def test_products_go_on_into_the_next_round(body, waits):
    """Where nothing but the next round's products add to their sums: `adds`. `looks` reads the sums, `keeps` those of
    the round before, `twice` has two products in flight."""
    k = Program("chain", "sm_90a", num_warps=8, num_stages=4, a_ptr=ptr(f16), b_ptr=ptr(f16), c_ptr=ptr(f32), K=i32)
    a_ptr, b_ptr, c_ptr, K = k.args
    K = k.multiple_of(K, 32)
    rows, columns, depth = k.arange(0, 128), k.arange(0, 64), k.arange(0, 32)
    a_ptrs = a_ptr + rows[:, None] * K + depth[None, :]
    b_ptrs = b_ptr + depth[:, None] * 64 + columns[None, :]
    acc, other = k.zeros((128, 64)), k.zeros((128, 64))
    for _ in k.range(0, K, 32):
        a, b = k.load(a_ptrs), k.load(b_ptrs)
        if body == "keeps":
            before, acc = acc, k.dot(a, b, acc)
            other = other + before
        else:
            acc = k.dot(a, b, acc)
        if body == "looks":
            other = other + acc
        if body == "twice":
            other = k.dot(a, b, other)
        a_ptrs += 32
        b_ptrs += 32 * 64
    k.store(c_ptr + rows[:, None] * 64 + columns[None, :], acc + other)
    text = assembly(k.function, targets.target("sm_90a"))
    rng, c = np.random.default_rng(5), np.full((128, 64), np.nan, np.float32)
    a, b = rng.integers(-4, 5, (128, 224)).astype(np.float16), rng.integers(-4, 5, (224, 64)).astype(np.float16)
    simulator.run(k.function, a, b, c, 224, grid=1)
    sums = np.cumsum([a[:, i:i + 32].astype(int) @ b[i:i + 32] for i in range(0, 224, 32)], axis=0)
    others = {"adds": 0, "looks": sums.sum(0), "keeps": sums[:-1].sum(0), "twice": sums[-1]}
    assert (c == sums[-1] + others[body]).all()
    assert {n: text.count(f"wgmma.wait_group.sync.aligned {n}") > 0 for n in (0, 1)} == {n: n in waits for n in (0, 1)}


@pytest.mark.parametrize("how", [{"EVEN": 1}, {"EVEN": 8, "NUM_STAGES": 1}])
def test_operands_are_not_copied_ahead(how):
    """Where an element would be a copy, or where there is one stage."""
    assert "cp.async" not in simulated("sm_80", f16, 32, 40, 72, **how).instructions


def test_operands_that_are_found_by_a_loaded_number():
    """As in attention with pages: they cannot be copied before that is known."""
    k = Program("pages", "sm_80", num_warps=2, num_stages=3, y=ptr(f32), x=ptr(f16), pages=ptr(i32), n=i32)
    y, x, pages, n = k.args
    at = k.arange(0, 32)[:, None] * 32 + k.arange(0, 32)[None, :]
    acc = k.zeros((32, 32))
    for i in k.range(n):
        block = k.load(x + k.load(pages + i) * 1024 + at)
        acc = k.dot(block, block, acc)
    k.store(y + at, acc)
    x = np.random.default_rng(0).integers(-3, 4, (5, 32, 32)).astype(np.float16)
    y, pages = np.zeros((32, 32), np.float32), np.array([4, 0, 3], np.int32)
    simulator.run(k.function, y, x, pages, 3)
    assert (y == sum(part @ part for part in x[pages].astype(np.float32))).all()


def test_operands_that_the_loop_stores():
    """Powers of a matrix: each round needs what the one before has stored."""
    k = Program("powers", "sm_80", num_warps=2, num_stages=3, x=ptr(f16), n=i32)
    x, n = k.args
    at = k.arange(0, 16)[:, None] * 16 + k.arange(0, 16)[None, :]
    for _ in k.range(n):
        block = k.load(x + at)
        product = k.dot(block, block)
        k.ir.barrier()
        k.store(x + at, product)
        k.ir.barrier()
    x = np.roll(np.eye(16), 1, axis=1).astype(np.float16)
    wanted = np.linalg.matrix_power(x.astype(np.float64), 8)
    simulator.run(k.function, x, 3)
    assert (x == wanted).all()


def test_a_block_that_is_more_than_an_operand_is_loaded():
    k = Program("sums", "sm_80", num_warps=2, num_stages=3, y=ptr(f32), z=ptr(f32), x=ptr(f16), n=i32)
    y, z, x, n = k.args
    i, j = k.arange(0, 32), k.arange(0, 32)
    acc, total = k.zeros((32, 32)), k.zeros((32, 32))
    pointers = x + i[:, None] * k.multiple_of(n, 32) + j[None, :]
    for _ in k.range(0, n, 32):
        block = k.load(pointers)
        acc = k.dot(block, block, acc)
        total += block
        pointers += 32
    at = i[:, None] * 32 + j[None, :]
    k.store(y + at, acc)
    k.store(z + at, total)
    x = np.random.default_rng(0).integers(-3, 4, (32, 96)).astype(np.float16)
    y, z = np.zeros((2, 32, 32), np.float32)
    report = simulator.run(k.function, y, z, x, 96)
    parts = [part.astype(np.float32) for part in np.split(x, 3, axis=1)]
    assert (y == sum(part @ part for part in parts)).all()
    assert (z == sum(parts)).all()
    assert "cp.async" not in report.instructions


@pytest.mark.parametrize("T", [f32, bf16, i8], ids=str)
def test_products_on_this_machine(T):
    a, b, c, wanted = product(T, 37, 61, 50)
    run(matmul(T=T, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16), a, b, c, 37, 61, 50, 50, 61, 61, grid=3 * 4)
    assert (c == wanted).all()


@pytest.mark.parametrize(("name", "instruction"), [
    ("sm_75", "mma.sync.aligned.m16n8k8"), ("sm_90a", "mma.sync.aligned.m16n8k16"), ("gfx950", "v_mfma_f32_")])
def test_products_are_matrix_instructions(name, instruction):
    assert instruction in assembly(matmul(name), targets.target(name))


@pytest.mark.parametrize("name", ["x86-avx2", "sm_80", "gfx942"])
def test_exponentials_by_the_hardware(name):
    k = Program("powers", name, num_warps=1, y=ptr(f32), x=ptr(f32))
    y, x = k.args
    at = k.arange(0, 64)
    k.store(y + at, k.exp(k.load(x + at), approximate=True))
    x = np.linspace(-120, 88, 64).astype(np.float32)
    y = np.zeros_like(x)
    simulator.run(k.function, y, x)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(y - exact) <= exact * 2**-22 * (1 + np.abs(x)) + 1.2e-38).all()


# ---- accesses


def test_lanes_load_wide_and_side_by_side():
    k = Program("copy", "sm_80", num_warps=1, y=ptr(f32), x=ptr(f32), n=i32)
    y, x, n = k.args
    cols = k.program_id(0) * 256 + k.arange(0, 256)
    inside = cols < k.multiple_of(n, 4)
    k.store(y + cols, k.load(x + cols, mask=inside), mask=inside)
    x = np.arange(500, dtype=np.float32)
    y = np.zeros_like(x)
    report = simulator.run(k.function, y, x, 500, grid=2)
    assert (x == y).all()
    loads = report.of(verb="load")
    assert loads.bytes == 2000
    assert loads.requests == 4                  # of 128 elements each
    assert "ld.global.nc.v4.b32" in assembly(k.function, targets.target("sm_80"))


@pytest.mark.parametrize("name", ["x86-avx2", "sm_80", "gfx942"])
def test_transposing(name):
    """Loaded along rows and stored along columns, by way of shared memory or one by one."""
    k = Program("transpose", name, num_warps=2, y=ptr(f32), x=ptr(f32))
    y, x = k.args
    i, j = k.arange(0, 32), k.arange(0, 16)
    k.store(y + j[None, :] * 32 + i[:, None], k.load(x + i[:, None] * 16 + j[None, :]) * 1.0)
    x = np.arange(512, dtype=np.float32).reshape(32, 16)
    y = np.zeros((16, 32), np.float32)
    simulator.run(k.function, y, x)
    assert (y == x.T).all()


def test_the_sum_of_a_formula():
    k = Program("sum", "sm_80", num_warps=1, y=ptr(i32))
    k.store(k.args[0], k.sum(k.arange(0, 64)) + k.sum(k.full((32,), 2, i32)))
    y = np.zeros(1, np.int32)
    simulator.run(k.function, y)
    assert y == 64 * 63 // 2 + 64


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["x86-avx2", "sm_80", "gfx942"])
def test_reductions_of_matrices_and_what_is_broadcast_again(name, axis):
    k = Program("centre", name, num_warps=4, y=ptr(f32), x=ptr(f32))
    y, x = k.args
    at = k.arange(0, 32)[:, None] * 64 + k.arange(0, 64)[None, :]
    x = k.load(x + at)
    top = k.max(x, axis=axis)
    k.store(y + at, x - (top[None, :] if axis == 0 else top[:, None]))
    x = np.random.default_rng(0).integers(-99, 99, (32, 64)).astype(np.float32)
    y = np.zeros_like(x)
    simulator.run(k.function, y, x)
    assert (y == x - x.max(axis, keepdims=True)).all()


@pytest.mark.parametrize("name", ["x86-avx2", "sm_80"])
def test_a_row_added_to_all_rows(name):
    """Its own layout is another than that of the matrix."""
    k = Program("bias", name, num_warps=2, y=ptr(f32), x=ptr(f32), row=ptr(f32), column=ptr(f32))
    y, x, row, column = k.args
    i, j = k.arange(0, 16), k.arange(0, 32)
    at = i[:, None] * 32 + j[None, :]
    k.store(y + at, k.load(x + at) + k.load(row + j)[None, :] * k.load(column + i)[:, None])
    x, row, column = (np.random.default_rng(0).integers(-9, 9, s).astype(np.float32) for s in ((16, 32), 32, 16))
    y = np.zeros_like(x)
    simulator.run(k.function, y, x, row, column)
    assert (y == x + row * column[:, None]).all()


def test_fewer_elements_than_threads_are_stored_once():
    k = Program("few", "sm_80", num_warps=4, y=ptr(f32), x=ptr(f32))
    y, x = k.args
    at = k.arange(0, 8)
    k.store(y + at, k.load(x + at) + 1.0)
    y = np.zeros(8, np.float32)
    report = simulator.run(k.function, y, np.arange(8, dtype=np.float32))
    assert (y == np.arange(1, 9)).all()
    assert report.of(verb="store").elements == 8


def test_an_access_without_its_mask_is_found():
    k = Program("unmasked", "sm_80", y=ptr(f32), x=ptr(f32))
    y, x = k.args
    at = k.arange(0, 128)
    k.store(y + at, k.load(x + at))
    with pytest.raises(simulator.Fault, match=r"out of bounds at test_block_\w+.py:\d+ in unmasked: load of x.100"):
        simulator.run(k.function, np.zeros(128, np.float32), np.zeros(100, np.float32))


# ---- loops


def test_a_loop_carries_numbers_and_blocks():
    k = Program("carried", "sm_80", num_warps=1, y=ptr(f32), n=i32)
    y, n = k.args
    at, total, count = k.arange(0, 32), k.zeros(32), k.full((), 0, i32)
    for i in k.range(n):
        count += i
        total = total + at.to(f32)
    k.store(y + at, total + count.to(f32))
    y = np.zeros(32, np.float32)
    simulator.run(k.function, y, 5)
    assert (y == 5 * np.arange(32) + 10).all()


def test_what_a_loop_may_not_change():
    k = Program("wrong", "sm_80", x=ptr(f32), n=i32)
    _, n = k.args
    count = 0
    with pytest.raises(TypeError, match="count is a Python number that the loop changes"):  # noqa: PT012
        for _ in k.range(n):
            count += 1


@pytest.mark.parametrize("block", [64, 1024])
def test_a_number_that_a_loop_makes_a_block(block):
    """A name that was a Python number may be a block in the loop, if a round does not need what the one before made."""
    k = Program("wrong", "sm_80", x=ptr(f32), n=i32)
    x, n = k.args
    most = -1.0
    with pytest.raises(TypeError, match=r"most is a Python number before .* k.full\(\(\), -1.0\) makes"):  # noqa: PT012
        for start in k.range(0, n, block):
            most = k.maximum(most, k.max(k.load(x + (start + k.arange(0, block)))))

    k = Program("right", "sm_80", x=ptr(f32), n=i32)
    x, n = k.args
    now, most = 0.0, k.full((), -1.0)
    for start in k.range(0, n, block):
        now = k.max(k.load(x + (start + k.arange(0, block))))
        most = k.maximum(most, now)
    k.store(x, most)
    values = np.arange(2048, dtype=np.float32)
    simulator.run(k.function, values, 2048)
    assert values[0] == 2047


def test_a_loop_that_is_left():
    k = Program("left", "sm_80", x=ptr(f32), n=i32)
    for _ in k.range(k.args[1]):
        break
    with pytest.raises(SyntaxError, match="left: a loop was left by break or return"):
        _ = k.function


# ---- errors


@pytest.fixture
def k():
    return Program("p", "sm_75", x=ptr(f32), h=ptr(f16), n=i32)


def test_shapes_that_cannot_be_broadcast(k):
    with pytest.raises(ValueError, match=r"\+ takes shapes that can be broadcast, .* not \[16\] and \[32\]"):
        k.arange(0, 16) + k.arange(0, 32)


@pytest.mark.parametrize("end", [0, 3, 100])
def test_an_arange_that_is_no_power_of_two(k, end):
    with pytest.raises(ValueError, match=rf"k.arange makes a power of two of numbers, up to 1048576, not {end}"):
        k.arange(0, end)


def test_products_of_formats_that_a_target_lacks(k):
    x = k.zeros((16, 16), bf16)
    with pytest.raises(TypeError, match="dot on sm_75 takes two blocks of f32, f16, i8, the same one, not bf16"):
        k.dot(x, x)
    x = k.zeros((16, 16))
    with pytest.raises(TypeError, match="dot on sm_75 has no tf32"):
        k.dot(x, x, precision="tf32")


def test_products_of_shapes_that_do_not_fit(k):
    with pytest.raises(ValueError, match=r"dot takes blocks \[m, k\] and \[k, n\] with extents from 16 on"):
        k.dot(k.zeros((16, 32)), k.zeros((16, 32)))


def test_loads_and_stores_of_what_is_no_pointer(k):
    at = k.arange(0, 16)
    with pytest.raises(TypeError, match="load takes pointers, made of a parameter and offsets, not i32"):
        k.load(at)
    with pytest.raises(TypeError, match="the mask of a load is a block of conditions"):
        k.load(k.args[0] + at, mask=at)
    with pytest.raises(ValueError, match=r"store takes a block of the pointers' shape, \[16\]"):
        k.store(k.args[0] + at, k.zeros((32, 16)))


def test_a_block_decides_nothing(k):
    with pytest.raises(TypeError, match="a block has no truth value"):
        bool(k.arange(0, 16) < 3)


@pytest.mark.parametrize(("wrong", "message"), [
    ({"num_warps": 3}, "num_warps must be 1, 2, 4, 8 or 16, not 3"),
    ({"num_stages": 0}, "num_stages must be a whole number from 1 on, not 0"),
    ({"align": 3}, "align must be 1, 2, 4, 8 or 16 bytes, not 3")])
def test_programs_that_cannot_be(wrong, message):
    with pytest.raises(ValueError, match=message):
        Program("p", "sm_80", **wrong)


def test_arguments_of_a_program_on_the_cpu():
    x = np.zeros(100, np.float32)
    with pytest.raises(TypeError, match="takes"):
        run(softmax(), x, x, 100, grid=1)


def test_strides_of_64_bits():
    k = Program("wide", "sm_80", num_warps=1, y=ptr(f32), x=ptr(f32), stride=i64)
    y, x, stride = k.args
    at = k.arange(0, 32)
    k.store(y + at, k.load(x + at * stride))
    y = np.zeros(32, np.float32)
    simulator.run(k.function, y, np.arange(96, dtype=np.float32), 3)
    assert (y == np.arange(0, 96, 3)).all()


def test_a_loop_in_a_loop_whose_operands_are_copied_ahead():
    """Rounds of which only addresses are recorded have no numbers for the inner loop to carry."""
    k = Program("inner", "sm_80", num_warps=1, num_stages=3, y=ptr(f32), x=ptr(f16), n=i32)
    y, x, n = k.args
    at = k.arange(0, 16)[:, None] * 16 + k.arange(0, 16)[None, :]
    total = k.zeros((16, 16))
    for i in k.range(n):
        block = k.load(x + i * 256 + at)
        product = k.dot(block, block)
        for _ in k.range(3):
            product = product + 1.0
        total += product
    k.store(y + at, total)
    x, y = np.random.default_rng(0).integers(-3, 4, (5, 16, 16)).astype(np.float16), np.zeros((16, 16), np.float32)
    simulator.run(k.function, y, x, 5)
    assert (y == sum(part @ part + 3 for part in x.astype(np.float32))).all()
