"""Compiled kernels called and bound with arrays of AMD GPUs, on the HIP of tests/doubles/fake_hip.py."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import tilewright as tw
from tests.doubles import fake_arrays, real_hip
from tests.helpers.arrays import small_integers
from tests.helpers.gpus import finish, started
from tests.helpers.processes import run
from tests.runtime.gpu.test_hip_arrays import Exporter
from tilewright import formats
from tilewright.compiler import artefact, cache, lld
from tilewright.plans.amd import AmdPlan
from tilewright.runtime.gpu import operands
from tilewright.runtime.gpu.arrays import HIP, DeviceArray
from tilewright.runtime.gpu.recipe import Recipe
from tilewright.runtime.hip import module

pytestmark = pytest.mark.code

Tensor = fake_arrays.Tensor
SMALL = "mfma 64x64x32 wave=32x32 mfma=32 copy=registers stages=2"
GFX942, GFX950 = tw.target("gfx942"), tw.target("gfx950")


@pytest.fixture
def fake(monkeypatch):
    found = started(monkeypatch, "gfx942")
    monkeypatch.setattr(Exporter, "fake", found, raising=False)
    return found


def integers(*shape, dtype=np.float16, seed=0):
    return small_integers(seed, shape, np.int64).astype(dtype)


def kernel(m=70, n=68, k=40, plan=SMALL, target=GFX942, **options):
    options = {"a": "f16", "out": "f32", "layout": "nt"} | options
    return tw.compile(tw.Gemm(m, n, k, **options), target, plan)


def device_array(fake, x):
    there = DeviceArray(HIP, module.device(), x.shape, x.dtype)
    fake.bytes_at(there.pointer, x.nbytes)[:] = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    return there


def read(fake, x):
    finish(fake)
    return fake.bytes_at(x.pointer, x.memory.size).view(x.dtype).reshape(x.shape)


def test_tensors_are_multiplied_on_torchs_stream(fake):
    stream = module.Stream()
    sys.modules["torch"].current = stream.handle
    a, b = integers(70, 40), integers(68, 40, seed=1)
    k = kernel(plan=SMALL + " vector_c=4")
    c = k(Tensor(a), Tensor(b.T))
    assert type(c) is Tensor
    assert np.isnan(c.host).all()  # nothing waits for the kernel
    fake.run(stream.handle)
    exact = a.astype(np.float32) @ b.T.astype(np.float32)
    np.testing.assert_array_equal(c.host, exact)
    assert [(grid, on) for _, grid, on in fake.launches] == [((4, 1, 1), stream.handle)]
    out = Tensor(np.ones((70, 68), np.float32))
    assert k(Tensor(a), Tensor(b.T), out, alpha=2, beta=-1) is out
    finish(fake)
    np.testing.assert_array_equal(out.host, 2 * exact - 1)


@pytest.mark.parametrize("how", ["fake", "hip-python"])
def test_numpy_arrays_are_copied(fake, monkeypatch, how):
    if how == "hip-python":
        real_hip.install(monkeypatch, fake)
    a, b = integers(40, 70, dtype=np.float64), integers(40, 68, dtype=np.float64, seed=1)
    plan = "mfma 64x64x16 wave=32x32 mfma=16 copy=registers stages=2 vector=2"
    k = kernel(a="f64", out="f64", layout="tn", plan=plan)
    np.testing.assert_array_equal(k(a.T, b), a.T @ b)
    c = np.ones((70, 68))
    assert k(a.T, b, c, beta=3) is c
    np.testing.assert_array_equal(c, a.T @ b + 3)
    assert len(fake.blocks) == 0  # all memory was given back


def test_arrays_by_dlpack_and_ours(fake):
    a, b = integers(70, 40), integers(68, 40, seed=1)
    exact = a.astype(np.float32) @ b.T.astype(np.float32)
    k = kernel(layout="nn", plan=SMALL + " vector=4")  # what is exported is in C order
    b_rows = np.ascontiguousarray(b.T)
    c = k(Exporter(a), Exporter(b_rows))
    assert isinstance(c, DeviceArray)  # the exporter has no from_dlpack
    np.testing.assert_array_equal(read(fake, c), exact)
    np.testing.assert_array_equal(read(fake, k(device_array(fake, a), device_array(fake, b_rows))), exact)


@pytest.mark.parametrize("formats_of", [("e4m3fn", "f16", "f16"), ("f16", "bf16", "f16"), ("i8", "i8", "f32")],
                         ids="-".join)
def test_operands_are_converted_as_matmul_converts_them(fake, formats_of):
    """NumPy's arrays, and a GPU's: each time that a bound call runs, on its stream. Whole numbers: all is exact."""
    types_of = [formats.get(name).dtype for name in formats_of]
    a, b, c = integers(70, 40, dtype=types_of[0]), integers(40, 68, dtype=types_of[1]), np.ones((70, 68), types_of[2])
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    k = tw.compile(tw.Gemm(70, 68, 40, *formats_of), GFX942)
    assert k.inner is not k
    np.testing.assert_array_equal(k(a, b), wanted.astype(types_of[2]))
    assert k(a, b, c, alpha=2, beta=3) is c
    np.testing.assert_array_equal(c, (2 * wanted + 3).astype(types_of[2]))
    there = [device_array(fake, x) for x in (a, b, np.ones_like(c))]
    assert k(*there, alpha=2, beta=3) is there[2]
    np.testing.assert_array_equal(read(fake, there[2]), c)
    bound = k.bind(there[0], there[1], there[2])
    for x in (a, -a):
        fake.bytes_at(there[0].pointer, a.nbytes)[:] = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
        np.testing.assert_array_equal(read(fake, bound()), (wanted if x is a else -wanted).astype(types_of[2]))
    assert len(fake.blocks) == 3  # temporaries were given back


def test_parts_of_k_have_a_workspace_for_each_stream(fake):
    a, b = integers(70, 100), integers(68, 100, seed=1)
    exact = a.astype(np.float32) @ b.T.astype(np.float32)
    k = kernel(k=100, plan=SMALL + " split_k=3")
    run, streams = k.bind(Tensor(a), Tensor(b.T)), [module.Stream(), module.Stream()]
    for stream in (*streams, streams[0]):
        run(stream)
        finish(fake)
        np.testing.assert_array_equal(run.out.host, exact)
        run.out.host[...] = 0
    assert {number for _, number in module.workspaces.found} == {s.handle for s in streams}
    assert fake.names().count("hipMalloc") == 2
    launch, _ = k.launches[0], None
    (first, second) = module.workspaces.found.values()
    assert first.workspace_bytes == second.workspace_bytes == launch.workspace == 3 * 4 * 64 * 64 * 4
    fake.capturing.add(streams[1].handle)  # a graph gets memory of its own, whose counters it clears itself
    run(streams[1])
    finish(fake)
    np.testing.assert_array_equal(run.out.host, exact)
    assert fake.names().count("hipMallocAsync") == fake.names().count("hipFreeAsync") == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("formats_of", [("mxfp4", "mxfp8"), ("mxfp6", "mxfp6")])
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_quantized_operands(monkeypatch, arch, formats_of):
    fake = started(monkeypatch, arch)
    qa, qb = (tw.quantize(integers(*s, dtype=np.float32, seed=i), f, axis=axis)
              for i, (s, f, axis) in enumerate(zip(((40, 64), (64, 36)), formats_of, (-1, 0))))
    exact = tw.dequantize(qa, "f64") @ tw.dequantize(qb, "f64")
    plan = {"gfx942": "mfma 64x64x64 wave=32x32 mfma=32 copy=registers stages=2 decoded=bf16",
            "gfx950": "scaled 64x64x128 wave=32x32 mfma=32 copy=registers stages=2"}[arch]
    problem = tw.Gemm(40, 36, 64, *formats_of, layout="nt")
    k = tw.compile(problem, tw.target(arch), plan + " vector_c=4")
    np.testing.assert_array_equal(k(qa, qb), exact)
    c = np.ones((40, 36), np.float32)
    assert k(qa, qb, c, beta=2, alpha=-1) is c
    np.testing.assert_array_equal(c, 2 - exact)
    out = Tensor(np.zeros((40, 36), np.float32))
    assert k(qa, qb, out) is out
    finish(fake)
    np.testing.assert_array_equal(out.host, exact)
    bound = k.bind(qa, qb)
    uploads = fake.names().count("hipMemcpy")
    bound()
    bound()
    assert fake.names().count("hipMemcpy") == uploads
    np.testing.assert_array_equal(read(fake, bound.out), exact)
    for args, error, says in (
        ((qa, np.ones((64, 36), np.float32)), TypeError, r"b must be Quantized \(.*\), not numpy.ndarray"),
        ((qb, qb), ValueError, "a must be .* of shape"),
        ((qa, qb, [1]), TypeError, "out must be a NumPy array or an array in an AMD GPU's memory, not list"),
        ((qa, qb, np.zeros((3, 3), np.float32)), ValueError, r"out must have shape \(40, 36\), not \(3, 3\)"),
    ):
        with pytest.raises(error, match=says):
            k(*args)
    with pytest.raises(ValueError, match=r"out must be given if beta is not 0, and beta is 1.0"):
        k.bind(qa, qb, beta=1)


def test_arguments_that_cannot_be(fake):
    k, a, b = kernel(), integers(70, 40), integers(40, 68)
    for args, error, says in (
        ((a, b), ValueError, None),  # NumPy's are stored as the kernel wants them
        ((Tensor(a), Tensor(b)), ValueError, "b must have contiguous columns, as layout 'nt' requires"),
        ((Tensor(a), Tensor(b.astype(np.float32))), TypeError, "b must have dtype float16, as the problem requires"),
        ((Tensor(a[:3]), Tensor(b)), ValueError, r"a must have shape \(70, 40\)"),
        ((Tensor(a), b), TypeError, "a is tests.Tensor in an AMD GPU's memory, and b is numpy.ndarray, which is not"),
        ((Tensor(a), Tensor(b, 1)), ValueError, "a is on AMD GPU 0 and b on AMD GPU 1"),
        ((a, [1]), TypeError, "b must be a NumPy array or an array in an AMD GPU's memory, not list"),
    ):
        if says is not None:
            with pytest.raises(error, match=says):
                k(*args)
    fine = k(a, b)
    np.testing.assert_array_equal(fine, a.astype(np.float32) @ b.astype(np.float32))
    with pytest.raises(TypeError, match=r"a must be an array in an AMD GPU's memory, not numpy.ndarray"):
        k.bind(a, b)
    with pytest.raises(ValueError, match="the kernel is for gfx950, and AMD Instinct MI300X runs gfx942 code"):
        kernel(target=GFX950)(a, b)
    assert kernel(k=0, plan=None)(a[:, :0], b[:0]).sum() == 0


def test_whole_numbers(fake):
    a, b = integers(70, 64, dtype=np.int8), integers(68, 64, dtype=np.int8, seed=1)
    k = kernel(k=64, a="i8", out="i32", plan="mfma 64x64x64 wave=32x32 mfma=32 copy=registers stages=2")
    np.testing.assert_array_equal(k(a, b.T, alpha=3), 3 * a.astype(np.int32) @ b.T.astype(np.int32))
    with pytest.raises(TypeError, match=r"alpha must be a whole number where integers are multiplied, not 0.5"):
        k(a, b.T, alpha=0.5)


def test_rows_that_cannot_be_copied_straight(monkeypatch):
    fake = started(monkeypatch, "gfx950")
    k = kernel(k=64, plan="mfma 64x64x64 wave=32x32 mfma=32 copy=lds stages=2", target=GFX950)
    wide, b = integers(70, 68), integers(68, 64, seed=1)
    fine = np.ascontiguousarray(wide[:, :64])
    c = k(Tensor(fine), Tensor(b.T))
    finish(fake)
    np.testing.assert_array_equal(c.host, fine.astype(np.float32) @ b.T.astype(np.float32))
    with pytest.raises(ValueError, match=r"multiples of 16 bytes, and those of A are .*matmul chooses"):
        k(Tensor(wide[:, :64]), Tensor(b.T))


def test_rows_that_are_too_far_apart_are_not_copied_straight():
    """Offsets have 32 bits: the rows of a tile must lie within 2^31 bytes."""
    problem = tw.Gemm(256, 256, 64, "f16", out="f32", layout="nt")
    for step, near in ((1 << 23, 256), (1 << 24, 128), (-16, 0)):
        a, b = (np.lib.stride_tricks.as_strided(np.zeros(8, np.float16), (256, 64), (s, 2)) for s in (step, 128))
        found = operands.shape_of(problem, GFX950, a, b.T, np.zeros((256, 256), np.float32))
        assert (found.near_a, found.near_b) == (near, 1024)
        plan = AmdPlan.parse("mfma 256x256x64 wave=128x64 mfma=32 copy=lds stages=2")
        said = [x for x in plan.violations(found, GFX950) if "rows are further apart" in x]
        assert bool(said) == (near < 256)


SECOND = """
import sys
import tilewright as tw
from tilewright.compiler import amd
def refuse(*args, **options):
    raise AssertionError("it was compiled again")
amd.code_object = amd.assembly = refuse
k = tw.compile(tw.Gemm(70, 68, 40, "f16", out="f32", layout="nt"), tw.target("gfx942"), sys.argv[1])
code = k.loadable
assert k.binary == code.image
recorded = "tilewright.kernels.amd" in sys.modules
print(code.manifest["symbol"], len(code.image), code.manifest["argument_bytes"], recorded)
"""


def test_a_second_process_does_not_compile_again(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(artefact, "_found", {})
    k = kernel()
    done = run(SECOND, SMALL)
    assert done.returncode == 1  # nothing is there yet
    assert "it was compiled again" in done.stderr
    assert k.binary[:4] == b"\x7fELF"
    done = run(SECOND, SMALL)
    assert done.stdout.split() == [k.function.name, str(len(k.binary)),
                                   str(k.manifest["argument_bytes"]), "False"], done.stderr
    assert k.loadable.manifest.items() <= (k.manifest | {"grid": None}).items()


def test_no_linker_no_entry(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(artefact, "_found", {})

    def missing():
        raise lld.Missing("there is no linker")

    monkeypatch.setattr(lld, "find", missing)
    with pytest.raises(lld.Missing):
        kernel().binary  # noqa: B018
    assert cache.info()["entries"] == 0


def test_the_recipe_keeps_its_blocks(fake):
    """A block of arguments is used again, one call at a time."""
    a, b = integers(70, 40), integers(68, 40, seed=1)
    run = kernel().bind(Tensor(a), Tensor(b.T))
    recipe = Recipe(module, kernel(), module.device(), 40, 40, 68)
    out = Tensor(np.zeros((70, 68), np.float32))
    for alpha in (1.0, 2.0):
        recipe.run(*(fake.array(x) for x in (a, b, out.host)), alpha, 0.0, 0)
        finish(fake)
        np.testing.assert_array_equal(out.host, alpha * a.astype(np.float32) @ b.T.astype(np.float32))
    assert len(recipe.only.spare) == 1
    assert run.recipe is not recipe
