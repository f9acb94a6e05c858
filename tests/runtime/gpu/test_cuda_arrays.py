"""matmul on arrays of CUDA devices, from the call to the result, on the fake driver of tests/doubles/fake_cuda.py."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

import tilewright as tw
from tests.doubles.fake_arrays import (
    CuPyArray,
    Exporter,
    Interface,
    Tensor,
    cupy,
    on_host,
    take_the_place_of_torch,
    torch,
)
from tests.doubles.fake_cuda import install
from tests.helpers.arrays import small_integers
from tests.helpers.gpus import finish, recipes
from tests.helpers.graphs import capture
from tests.helpers.plain_gemm import Compiled, Split
from tilewright.ir import Kernel, f32, i64, ptr
from tilewright.kernels.elementwise import each, each_row, fold, once
from tilewright.plans.nvidia import NvidiaPlan
from tilewright.runtime.cuda import module
from tilewright.runtime.gpu import engine, operands
from tilewright.runtime.gpu.arrays import DLPACK, DeviceArray, shadow
from tilewright.runtime.gpu.engine import NVIDIA


@pytest.fixture
def fake(monkeypatch):
    fake = install(monkeypatch, devices=2)
    monkeypatch.setattr(engine.NVIDIA, "compile", Compiled)
    take_the_place_of_torch(monkeypatch, torch(fake))
    monkeypatch.setitem(sys.modules, "cupy", cupy(fake))
    Exporter.fake = Interface.fake = fake
    return fake


def integers(*shape, dtype=np.float32, seed=0):
    return small_integers(seed, shape, dtype)


# ---- one library after the other


@pytest.mark.parametrize("library", [Tensor, CuPyArray])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_are_of_the_callers_library(fake, library, dtype):
    a, b = integers(13, 9, dtype=dtype), integers(9, 11, dtype=dtype, seed=1)
    c = tw.matmul(library(a), library(b))
    assert type(c) is library
    assert np.isnan(c.host).all()  # nothing waits for the kernel
    finish(fake)
    np.testing.assert_array_equal(c.host, a @ b)
    assert c.host.dtype == dtype
    out = library(np.zeros((13, 11), dtype))
    assert tw.matmul(library(a), library(b), out) is out
    assert tw.matmul(library(a), library(b), (out,)) is out
    finish(fake)
    np.testing.assert_array_equal(out.host, a @ b)


@pytest.mark.parametrize("library", [Tensor, CuPyArray])
def test_on_the_current_stream(fake, library):
    sys.modules["torch"].current = sys.modules["cupy"].current = 55
    a = integers(4, 4)
    c = tw.matmul(library(a), library(a))
    fake.run(1)
    assert np.isnan(c.host).all()
    fake.run(55)
    np.testing.assert_array_equal(c.host, a @ a)
    assert {stream for *_, stream in fake.launches} == {55}


def test_dlpack(fake):
    a, b = Exporter(integers(5, 6)), Exporter(integers(6, 7, seed=1))
    c = tw.matmul(a, b)
    assert a.asked == b.asked == [1]  # ready on the default stream, where the kernel runs
    np.testing.assert_array_equal(c.read(fake), a.host @ b.host)
    assert not fake.queues[1]  # the call has waited: such a library has no stream that could
    out = Exporter(np.zeros((5, 7), np.float32))
    assert tw.matmul(a, b, out=out) is out
    np.testing.assert_array_equal(out.host, a.host @ b.host)


def test_dlpack_before_versions(fake, monkeypatch):
    monkeypatch.setattr(Exporter, "versions", False)
    a = Exporter(integers(5, 5))
    np.testing.assert_array_equal(tw.matmul(a, a).read(fake), a.host @ a.host)


def test_results_live_as_long_as_their_taker(fake):
    a = Exporter(integers(5, 5))
    c = tw.matmul(a, a)
    (block,) = fake.blocks
    assert c.contents.pointer == block
    del c
    assert not fake.blocks


def test_a_capsule_that_nobody_takes(fake):
    a = Interface(integers(5, 5))
    c = tw.matmul(a, a)
    capsule = c.__dlpack__(stream=77)
    del c
    assert fake.blocks
    del capsule
    assert not fake.blocks


def test_dlpack_orders_the_takers_stream(fake):
    a = Interface(integers(5, 5))
    a.stream = 9
    c = tw.matmul(a, a)
    c.__dlpack__(stream=77)
    assert not fake.launches
    fake.run(77)
    assert fake.launches
    with pytest.raises(BufferError, match="without a copy"):
        c.__dlpack__(copy=True)


def test_cuda_array_interface(fake):
    a, b = Interface(integers(5, 6)), Interface(integers(6, 7, seed=1))
    a.stream = 9  # the product follows what made a
    c = tw.matmul(a, b)
    assert type(c) is DeviceArray
    assert (c.shape, c.dtype, c.__dlpack_device__()) == ((5, 7), np.float32, (2, 0))
    assert repr(c) == "<DeviceArray of shape (5, 7), float32, on CUDA device 0>"
    fake.run(9)
    np.testing.assert_array_equal(read(fake, c), a.host @ b.host)
    square = tw.matmul(c, c, trans_b=True)  # and what it gives can be multiplied
    fake.run(9)
    np.testing.assert_array_equal(read(fake, square), (a.host @ b.host) @ (a.host @ b.host).T)


def read(fake, array):
    size = int(np.prod(array.shape)) * array.dtype.itemsize
    pointer = array.__cuda_array_interface__["data"][0]
    return fake.memory.find(pointer).data[:size].view(array.dtype).reshape(array.shape)


# ---- shapes, strides, dtypes: as NumPy has them


LAYOUTS = {
    "rows": np.ascontiguousarray,
    "columns": np.asfortranarray,
    "padded": lambda x: np.ascontiguousarray(np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 3)]))[..., :-3],
    "strided": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "reversed": lambda x: np.ascontiguousarray(x[::-1])[::-1],
}


@pytest.mark.parametrize("layout_b", LAYOUTS)
@pytest.mark.parametrize("layout_a", LAYOUTS)
def test_strides(fake, layout_a, layout_b):
    a, b = LAYOUTS[layout_a](integers(9, 5)), LAYOUTS[layout_b](integers(5, 10, seed=1))
    c = tw.matmul(CuPyArray(a), CuPyArray(b))
    finish(fake)
    np.testing.assert_array_equal(c.host, a @ b)
    copies = [name for name, *_ in fake.launches if name.startswith("copy")]
    assert len(copies) == (layout_a == "strided") + (layout_b == "strided")
    assert not fake.blocks  # what was copied is gone


def test_alpha_zero_never_reads_the_operands(fake):
    a, c = CuPyArray(np.full((4, 4), np.nan, np.float32)), integers(4, 4)
    expected = 2 * c
    tw.gemm(0, a, a, 2, CuPyArray(c))
    finish(fake)
    np.testing.assert_array_equal(c, expected)
    tw.gemm(0, a, a, 0, CuPyArray(c))
    finish(fake)
    assert not c.any()


def test_scalars_beyond_the_range_of_f32(fake):
    a, b, c = (np.ones(shape, np.float32) for shape in ((4, 5), (5, 6), (4, 6)))
    x, y = CuPyArray(a), CuPyArray(b)
    for _ in range(2):  # the second time the short way, if there is one
        infinite = [tw.matmul(x, y, alpha=1e39), tw.matmul(x, y, alpha=1, beta=1, c=1e39)]
        tw.gemm(1, x, y, -(10**400), CuPyArray(c))
        finish(fake)
        assert all(np.isposinf(each.host).all() for each in infinite)
        assert np.isneginf(c).all()
        c[...] = 1
    with pytest.raises(TypeError, match="alpha = 1j is complex, and the products are added up in float32"):
        tw.matmul(x, y, alpha=1j)


def test_an_output_that_overlaps(fake):
    a, b = integers(6, 6), integers(6, 6, seed=1)
    expected = a @ b
    tw.matmul(CuPyArray(a), CuPyArray(b), CuPyArray(a))
    finish(fake)
    np.testing.assert_array_equal(a, expected)
    both = integers(8, 6)
    expected = both[:6] @ b
    tw.matmul(CuPyArray(both[:6]), CuPyArray(b), CuPyArray(both[2:]))
    finish(fake)
    np.testing.assert_array_equal(both[2:], expected)


def test_what_is_added_overlaps_the_output(fake):
    a, b, c = integers(60, 4), integers(4, 8, seed=1), integers(61, 8, seed=2)  # rows for CTAs that run one by one
    expected = a @ b + c[:60]
    tw.matmul(CuPyArray(a), CuPyArray(b), CuPyArray(c[1:]), beta=1, c=CuPyArray(c[:60]))
    finish(fake)
    np.testing.assert_array_equal(c[1:], expected)


# ---- again and again


def test_a_second_call_compiles_nothing(fake):
    a = CuPyArray(integers(4, 4))
    tw.matmul(a, a)
    before = fake.names().count("cuModuleLoadDataEx")
    tw.matmul(a, a)
    tw.matmul(CuPyArray(integers(4, 4, seed=3)), a)
    assert fake.names().count("cuModuleLoadDataEx") == before
    assert recipes(engine.NVIDIA) == 1


def test_other_strides_and_devices_have_their_own_recipes(fake):
    a = integers(4, 8)
    for x in (a[:, :4], np.ascontiguousarray(a[:, :4])):
        tw.matmul(CuPyArray(x), CuPyArray(x))
    assert recipes(engine.NVIDIA) == 2


def test_in_a_graph(fake):
    stream = module.Stream()
    sys.modules["cupy"].current = stream.handle
    a, b, out = integers(6, 10)[:, ::2], integers(5, 6, seed=1), np.zeros((6, 6), np.float32)
    with capture(stream) as graph:
        tw.matmul(CuPyArray(a), CuPyArray(b), CuPyArray(out), beta=1, c=2.0)
    stream.synchronize()
    assert not out.any()
    for _ in range(2):
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(out, a @ b + 2)
        b *= 2


@pytest.mark.parametrize("captured", [False, True])
def test_workspaces(fake, monkeypatch, captured):
    monkeypatch.setattr(engine.NVIDIA, "compile", Split)
    stream = module.Stream()
    sys.modules["cupy"].current = stream.handle
    a, out = integers(6, 6), np.zeros((6, 6), np.float32)

    def multiply():
        for _ in range(2):
            tw.matmul(CuPyArray(a), CuPyArray(a), CuPyArray(out))

    if captured:
        with capture(stream) as graph:
            multiply()
        graph.launch(stream)
    else:
        multiply()
    stream.synchronize()
    np.testing.assert_array_equal(out, a @ a)
    assert len(fake.blocks) == 1  # kept for the stream; a graph has its own, but for the counters


# ---- what is refused


def refused(error, match, *args, **options):
    with pytest.raises(error, match=match):
        tw.matmul(*args, **options)


def test_refusals_name_the_argument(fake):
    a, i64 = CuPyArray(integers(4, 4)), CuPyArray(integers(4, 4, dtype=np.int64))
    refused(TypeError, r"sm_90a has no kernel for a = i64, b = i64, .* it multiplies f32, f64, f16, bf16", i64, i64)
    refused(
        TypeError, r"a is tests.CuPyArray in a CUDA device's memory, and b is numpy.ndarray, which is not", a, a.host
    )
    refused(TypeError, r"a is tests.CuPyArray .*, and b is tests.Tensor; .* of one library", a, Tensor(a.host))
    refused(TypeError, r"b is tests.Tensor .*, and a is list, which is not", [[1.0]], Tensor(a.host))
    refused(TypeError, r"out is numpy.ndarray, which is not", a, a, a.host)
    refused(ValueError, r"a is on CUDA device 0 and b on CUDA device 1", a, CuPyArray(a.host, 1))
    refused(ValueError, r"a and b must agree in k", a, CuPyArray(integers(5, 4)))
    refused(ValueError, r"out must have the result's shape \(4, 4\)", a, a, CuPyArray(integers(5, 4)))
    refused(ValueError, r"a must have at least 1 axis", CuPyArray(np.ones((), np.float32)), a)
    refused(ValueError, r"c must be given if beta is not 0, and beta is 1", a, a, beta=1)
    refused(ValueError, r"c must broadcast to the result's shape \(4, 4\)", a, a, beta=1, c=CuPyArray(integers(3)))
    refused(ValueError, r"a tuple of one array, not a tuple of 2", a, a, (a, a))
    refused(TypeError, r"out has dtype float32, but out_dtype asks for float64", a, a, a, out_dtype="f64")
    shared = CuPyArray(np.broadcast_to(np.ones(4, np.float32), (4, 4)))
    refused(ValueError, r"out has elements that share memory", a, a, shared)
    with pytest.raises(ValueError, match=r"there is no CUDA device 5"):
        tw.matmul(CuPyArray(a.host, 5), CuPyArray(a.host, 5))
    assert not fake.launches


def test_what_torch_knows_of_a_tensor(fake):
    a = Tensor(integers(4, 4))
    grad = Tensor(a.host)
    grad.requires_grad = True
    tw.matmul(grad, a)  # torch.no_grad()
    sys.modules["torch"].grad = True
    refused(ValueError, r"b requires a gradient.*b\.detach\(\)", a, grad)
    sparse = Tensor(a.host)
    sparse.layout = "torch.sparse_coo"
    refused(TypeError, r"a is a sparse tensor", sparse, a)
    negated = Tensor(integers(4, 4))
    negated.negated = True
    c = tw.matmul(negated, a)
    refused(ValueError, r"out is a lazily negated view", a, a, negated)
    finish(fake)
    np.testing.assert_array_equal(c.host, -negated.host @ a.host)


def test_tensors_in_the_hosts_memory_are_multiplied_there(fake):
    """Without np.asarray, which fails here; mixed with one on a device they are refused."""
    a, b = on_host(integers(4, 4)), on_host(integers(4, 6, seed=1))
    c = tw.matmul(a, b)
    assert type(c) is Tensor
    assert not c.is_cuda
    np.testing.assert_array_equal(c.host, a.host @ b.host)
    assert not fake.launches
    refused(TypeError, "a is .*Tensor in a CUDA device's memory, and b is .*Tensor, which is not", Tensor(a.host), b)


def test_masks_and_read_only_arrays(fake):
    a, masked, readonly = (Interface(integers(4, 4)) for _ in range(3))
    masked.mask, readonly.readonly = a, True
    refused(TypeError, r"b has a mask", a, masked)
    refused(ValueError, r"out is read-only", a, a, readonly)
    tw.matmul(readonly, a)
    immutable = Exporter(integers(4, 4))
    immutable.readonly = True
    with pytest.raises(ValueError, match="out is read-only"):
        DLPACK.look(immutable, "out", 0, write=True)


def test_elements_that_are_not_whole(fake):
    odd = CuPyArray(np.zeros((4, 4), [("x", "f4"), ("y", "u2")])["x"])  # a float every six bytes
    refused(ValueError, r"an operand is not aligned to its elements", odd, CuPyArray(integers(4, 4)))


def test_errors_of_the_kernel_name_it(fake):
    a = CuPyArray(integers(4, 4))
    tw.matmul(a, a)
    fake.fail["cuLaunchKernelEx"] = 719
    with pytest.raises(module.CudaError, match=r"CUDA_ERROR_LAUNCH_FAILED \(719\).*kernel plain_f32_nn"):
        tw.matmul(a, a)


# ---- a kernel with its operands


def test_bound(fake):
    kernel = Compiled(tw.Gemm(5, 6, 7, layout="nt"), module.target())
    a, b = integers(5, 7), integers(6, 7, seed=1)
    run = NVIDIA.bind(kernel, CuPyArray(a), CuPyArray(b.T), alpha=2)
    run()
    finish(fake)
    np.testing.assert_array_equal(run.out.host, 2 * a @ b.T)
    a += 1
    assert run(stream=66) is run.out
    fake.run(66)
    np.testing.assert_array_equal(run.out.host, 2 * a @ b.T)


def test_called_with_numpy_arrays(fake):
    kernel = Compiled(tw.Gemm(5, 6, 7, layout="tn"), module.target())
    a, b, c = integers(7, 5), integers(7, 6, seed=1), integers(5, 6, seed=2)
    np.testing.assert_array_equal(NVIDIA.call(kernel, a.T, b), a.T @ b)
    expected = a.T @ b + 2 * c
    assert NVIDIA.call(kernel, a.T, b, c, beta=2) is c
    np.testing.assert_array_equal(c, expected)
    assert not fake.blocks
    for match, args in (
        (r"a must have shape \(5, 7\), not \(7, 5\)", (a, b)),
        (r"b must have dtype float32", (a.T, b.astype("f8"))),
    ):
        with pytest.raises((TypeError, ValueError), match=match):
            NVIDIA.call(kernel, *args)


@pytest.mark.parametrize("failing", ["cuLaunchKernelEx", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"])
def test_copies_are_freed_after_an_error(fake, failing):
    kernel = Compiled(tw.Gemm(5, 6, 7), module.target())
    fake.fail[failing] = 1
    with pytest.raises(module.CudaError, match=failing) as caught:
        NVIDIA.call(kernel, integers(5, 7), integers(7, 6))
    assert caught.value.code == 1
    caught = None
    gc.collect()
    assert not fake.blocks


def test_temporaries_are_freed_while_the_stream_is_the_callers(fake):
    fake.fail["cuLaunchKernelEx"] = 1
    stream = module.Stream()
    sys.modules["cupy"].current = stream.handle
    with pytest.raises(module.CudaError) as caught:  # whose traceback has the names of all temporaries
        tw.matmul(CuPyArray(integers(4, 8)[:, ::2]), CuPyArray(integers(4, 8)[:, ::2]))
    assert not fake.blocks
    assert caught.value.kernel == "copy_f32_f32"


def test_called_with_a_batch(fake):
    kernel = Compiled(tw.Gemm(5, 6, 7, batch=3), module.target())
    a, b = integers(3, 5, 7), integers(3, 7, 6, seed=1)
    np.testing.assert_array_equal(NVIDIA.call(kernel, a, b), a @ b)
    c = NVIDIA.call(kernel, CuPyArray(a), CuPyArray(b))
    finish(fake)
    np.testing.assert_array_equal(c.host, a @ b)


def test_nothing_to_add_up(fake):
    """k = 0: C is multiplied by beta, by no product."""
    kernel, c = tw.compile(tw.Gemm(5, 6, 0), module.target()), integers(5, 6, seed=2)
    a, b, out = CuPyArray(np.zeros((5, 0), np.float32)), CuPyArray(np.zeros((0, 6), np.float32)), CuPyArray(c.copy())
    new = kernel(a, b)
    assert kernel(a, b, out, beta=2) is out
    finish(fake)
    assert not new.host.any()
    np.testing.assert_array_equal(out.host, 2 * c)
    np.testing.assert_array_equal(kernel(np.zeros((5, 0), np.float32), np.zeros((0, 6), np.float32), c, beta=3), c)
    assert kernel(np.zeros((5, 0), np.float32), np.zeros((0, 6), np.float32)).sum() == 0


def test_called_with_dlpack(fake):
    kernel = Compiled(tw.Gemm(5, 6, 7), module.target())
    a, b = Exporter(integers(5, 7)), Exporter(integers(7, 6, seed=1))
    np.testing.assert_array_equal(NVIDIA.call(kernel, a, b).read(fake), a.host @ b.host)


def test_operands_that_a_kernel_cannot_use(fake):
    kernel = Compiled(tw.Gemm(4, 4, 4, layout="tn"), module.target())
    x = CuPyArray(integers(4, 4))
    for match, args in (
        (r"a must have contiguous columns, as layout 'tn' requires", (x, x)),
        (r"b must have shape \(4, 4\), not \(5, 4\)", (CuPyArray(x.host.T), CuPyArray(integers(5, 4)))),
        (r"out must have contiguous rows, but", (CuPyArray(x.host.T), x, CuPyArray(integers(4, 4).T))),
        (r"out must not overlap b", (CuPyArray(integers(4, 4).T), x, x)),
        (r"b must have dtype float32", (CuPyArray(x.host.T), CuPyArray(integers(4, 4, dtype="f8")))),
    ):
        with pytest.raises((TypeError, ValueError), match=match):
            NVIDIA.bind(kernel, *args)


def test_a_kernel_for_another_device(fake):
    fake.attributes["COMPUTE_CAPABILITY_MAJOR"] = 8
    x = CuPyArray(integers(4, 4))
    for call in (NVIDIA.bind, NVIDIA.call):
        with pytest.raises(ValueError, match=r"for sm_90a, and NVIDIA fake H200 runs sm_80 code"):
            call(Compiled(tw.Gemm(4, 4, 4), tw.target("sm_90a")), x, x)


# ---- the short way of a product like an earlier one


@pytest.mark.parametrize("library", [Tensor, CuPyArray])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_the_second_of_two_alike_goes_the_short_way(fake, monkeypatch, library, turned, given):
    def out():
        made = np.zeros((7, 5) if turned else (5, 7), np.float32)
        return library(made.T if turned else made) if given else None

    a, b = integers(5, 6), integers(6, 7, seed=1)
    tw.matmul(library(a), library(b), out())
    monkeypatch.setattr(engine, "multiplied", None)  # the long way is closed
    sys.modules["torch"].current = sys.modules["cupy"].current = 55
    x, y = integers(5, 6, seed=3), integers(6, 7, seed=4)
    c = tw.matmul(library(x), library(y), out(), alpha=2)
    fake.run(55)
    assert type(c) is library
    np.testing.assert_array_equal(c.host, 2 * x @ y)


def test_what_is_not_alike_goes_the_long_way(fake, monkeypatch):
    a, b = integers(6, 6), integers(6, 6, seed=1)
    tw.matmul(Tensor(a), Tensor(b), Tensor(np.zeros((6, 6), np.float32)))
    tw.matmul(Tensor(a), Tensor(b))

    def long_way(*args, **options):
        raise InterruptedError

    monkeypatch.setattr(engine, "multiplied", long_way)
    tw.matmul(Tensor(a), Tensor(b))
    strided, lazy = Tensor(np.asfortranarray(a)), Tensor(a)
    lazy.negated = True
    wide = np.zeros((12, 6), np.float32)
    for args, options in (
        ((Tensor(a), Tensor(integers(6, 8))), {}),
        ((Tensor(a), Tensor(b.astype("f8"))), {}),
        ((strided, Tensor(b)), {}),
        ((lazy, Tensor(b)), {}),
        ((Tensor(a), Tensor(b)), {"trans_a": True}),
        ((Tensor(a), Tensor(b)), {"alpha": 0}),
        ((Tensor(a), Tensor(b)), {"beta": 1, "c": 1.0}),
        ((Tensor(a), Tensor(b)), {"out_dtype": "f64"}),
        ((Tensor(wide[:6]), Tensor(b), Tensor(wide[3:9])), {}),  # overlaps
        ((Tensor(a), Tensor(wide[:6]), Tensor(wide[3:9])), {}),
        ((Tensor(wide[3:9]), Tensor(b), Tensor(wide[:6])), {}),
    ):
        with pytest.raises(InterruptedError):
            tw.matmul(*args, **options)
    tw.matmul(Tensor(wide[:6]), Tensor(b), Tensor(wide[6:]))  # side by side


def test_an_operand_that_is_less_aligned_has_its_own_recipe(fake):
    """A plan may count on addresses that are multiples of 16 bytes."""
    x = np.zeros(6 * 6 + 1, np.float32)
    for begin in (0, 1):
        tw.matmul(Tensor(x[begin : begin + 36].reshape(6, 6)), Tensor(integers(6, 6)))
    assert recipes(engine.NVIDIA) == 2


PLAN = NvidiaPlan("simt", 64, 64, 16, 32, 32, 8, 4, vector=4)


@pytest.mark.parametrize("shape", [(5, 6), (2, 5, 6), (5, 0)])
def test_numpy_arrays_with_a_plan_for_a_gpu(fake, shape):
    a, b = integers(*shape), integers(shape[-1], 7, seed=1)
    for x, y in ((a, b), (np.asfortranarray(a), b[:, ::-1])):
        fake.launches.clear()
        c = tw.matmul(x, y, plan=PLAN)
        assert type(c) is np.ndarray
        np.testing.assert_array_equal(c, x @ y)
        assert bool(fake.launches) == (0 not in shape)
    assert not fake.blocks
    np.testing.assert_array_equal(tw.matmul(a, b, beta=2, c=1.0, plan=PLAN), a @ b + 2)


# ---- vectors: what a plan may move at once


@pytest.mark.parametrize(("begin", "rows", "columns", "ld", "dtype", "expected"), [
    (0, 8, 8, 8, "f4", 4), (4, 8, 8, 8, "f4", 4), (2, 8, 8, 8, "f4", 2), (1, 8, 8, 8, "f4", 1), (0, 8, 8, 10, "f4", 2),
    (0, 8, 6, 8, "f4", 2), (0, 8, 7, 8, "f4", 1), (0, 1, 8, 9, "f4", 4), (0, 8, 1, 8, "f4", 1), (0, 8, 8, 8, "f8", 2),
    (1, 8, 8, 8, "f8", 1), (0, 8, 8, -8, "f4", 4),
])
def test_what_one_access_may_have(begin, rows, columns, ld, dtype, expected):
    """Elements along A's rows, along its columns where those are contiguous, and along rows of B and C."""
    size, on = np.dtype(dtype).itemsize, tw.target("sm_90a")
    matrix = shadow(1024 + begin * size, (rows, columns), (ld * size, size), np.dtype(dtype))
    other, square = (shadow(1024, shape, (16 * size, size), np.dtype(dtype)) for shape in ((columns, 8), (rows, 8)))
    problem = tw.Gemm(rows, 8, columns, "f32" if size == 4 else "f64")
    found = operands.shape_of(problem, on, matrix, other, square)
    assert (found.vector_a, found.vector_b, found.vector_c) == (expected, 16 // size, 16 // size)
    turned = tw.Gemm(columns, 8, rows, problem.a, layout="tn")
    assert operands.shape_of(turned, on, matrix.T, square, other).vector_a == expected
    last = shadow(matrix.__array_interface__["data"][0], (columns, rows), (ld * size, size), np.dtype(dtype))
    wide = shadow(1024, (8, 8), (16 * size, size), np.dtype(dtype))
    if rows == columns:
        assert operands.shape_of(tw.Gemm(8, 8, 8, problem.a), on, wide, last, wide).vector_b == expected
        assert operands.shape_of(tw.Gemm(8, 8, 8, problem.a), on, wide, wide, last).vector_c == expected


class Vectored(Compiled):
    def __init__(self, problem, target, plan=None):
        super().__init__(problem, target)
        self.plan = plan or PLAN
        made.append(self.plan.vector)


made: list[int] = []


def test_a_plan_is_chosen_by_what_the_operands_allow(fake, monkeypatch):
    monkeypatch.setattr(engine.NVIDIA, "compile", Vectored)
    made.clear()
    x, y = CuPyArray(integers(8, 8)), CuPyArray(integers(8, 9)[:, 1:])
    tw.matmul(x, x)
    tw.matmul(x, y)
    assert made == [4, 1]
    with pytest.raises(ValueError, match=r"vector = 4 elements are copied at once, and the operands allow 1"):
        tw.matmul(x, y, plan=PLAN)
    with pytest.raises(ValueError, match=r"vector = 4 elements are copied at once, and the operands allow 1"):
        NVIDIA.bind(Vectored(tw.Gemm(8, 8, 8), module.target()), x, y)
    with pytest.raises(ValueError, match=r"vector = 4 elements are copied at once, and the operands allow 1"):
        NVIDIA.call(Vectored(tw.Gemm(7, 7, 7), module.target()), integers(7, 7), integers(7, 7))


# ---- kernels of each


def emit_added_arrays(threads=None):
    k = Kernel("added_arrays", threads=threads, n=i64, x=ptr(f32), y=ptr(f32), z=ptr(f32))
    n, x, y, z = k.args
    with each(k, n) as i:
        z[i] = x[i] + y[i]
    return k.function


def emit_sums_of_rows(threads=None):
    k = Kernel("sums_of_rows", threads=threads, rows=i64, cols=i64, x=ptr(f32), sums=ptr(f32))
    rows, cols, x, sums = k.args
    with each_row(k, rows + 0, "warp") as row:
        total = fold(k, cols, lambda a, b: a + b, 0.0, lambda j: x.view(cols, 1)[row, j])
        with once(k):
            sums[row] = total
    return k.function


@pytest.mark.parametrize("library", [Tensor, CuPyArray, Interface])
def test_kernels_of_each_have_as_many_ctas_as_they_need(fake, library):
    add, sums = tw.kernel(emit_added_arrays, threads=64), tw.kernel(emit_sums_of_rows, threads=64)
    for start in 0, 0, 1:  # the second call repeats the first one's launch with other addresses
        x, y, z = (integers(999, seed=seed)[start:] for seed in (start + 1, start + 2, 0))
        n = len(x)
        add(n, library(x), library(y), out := library(z))
        finish(fake)
        np.testing.assert_array_equal(out.host, x + y)
    rows = integers(7, 30)
    sums(7, 30, library(rows), out := library(np.zeros(7, np.float32)))
    finish(fake)
    np.testing.assert_array_equal(out.host, rows.sum(1))
    add(10, library(x), library(y), library(z), grid=3)
    finish(fake)
    assert [grid for _, grid, _ in fake.launches] == [(4, 1, 1)] * 3 + [(4, 1, 1), (3, 1, 1)]
    host = np.zeros(10, np.float32)
    add(10, host, host, host)  # the same emitter on the CPU
    with pytest.raises(TypeError, match="must be an array in a GPU's memory, not ndarray of float32"):
        add(10, library(x), host, host)
