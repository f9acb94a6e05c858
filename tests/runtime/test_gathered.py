"""An operand read by tables on NVIDIA GPUs: convolutions as einsum of views, without copies of windows.
"""
from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import tilewright as tw
from tests.helpers.gpus import aligned, machine
from tilewright.formats import FORMATS

# n, h, w, c, kernel, step, dilation, outputs
SHAPES = [(2, 7, 6, 8, 3, 1, 1, 8), (1, 9, 9, 16, 3, 2, 1, 5), (3, 8, 7, 4, 2, 1, 2, 17), (2, 5, 5, 24, 1, 2, 1, 3)]


def windows(x, r, step, dilation):
    """x [n, h, w, c] as [n, h', w', r, t, c]."""
    n, h, w, c = x.shape
    span = (r - 1) * dilation
    a, b, d, e = x.strides
    return as_strided(x, (n, (h - span - 1) // step + 1, (w - span - 1) // step + 1, r, r, c),
                      (a, b * step, d * step, b * dilation, d * dilation, e))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_convolutions(monkeypatch, shape, dtype):
    n, h, w, c, r, step, dilation, o = shape
    rng = np.random.default_rng(0)
    x, y = aligned(rng.integers(-3, 4, (n, h, w, c)).astype(dtype)), rng.integers(-3, 4, (r, r, c, o)).astype(dtype)
    view = windows(x, r, step, dilation)
    on = machine(monkeypatch, "sm_80")
    for subscripts in ("nhwrtc,rtco->nhwo", "nhwrtc,rtco->nohw"):
        want = np.einsum(subscripts, view.astype(np.float64), y.astype(np.float64))
        result = aligned(np.full(want.shape, 9, dtype))
        on.machine.launches.clear()
        tw.einsum(subscripts, on.array(view), on.array(y), out=on.array(result))
        on.finish()
        np.testing.assert_array_equal(result, want)
        names = [str(x[0]) for x in on.machine.launches]
        assert sum("_gathered_" in x for x in names) == 1, names


@pytest.mark.parametrize("chip", ["sm_80", "gfx942"])
@pytest.mark.parametrize("subscripts", ["nchrwt,ocrt->nohw", "nchrwt,crto->nhwo"])
def test_channels_first(monkeypatch, chip, subscripts):
    """Memory is copied with the channels innermost, not windows; where no kernel reads tables, one launch multiplies
    a copy of the windows."""
    rng = np.random.default_rng(1)
    x = aligned(rng.integers(-3, 4, (2, 8, 20, 21)).astype(np.float32))
    y = rng.integers(-3, 4, (5, 8, 3, 3) if "ocrt" in subscripts else (8, 3, 3, 5)).astype(np.float32)
    view = windows(x.transpose(0, 2, 3, 1), 3, 1, 1).transpose(0, 5, 1, 3, 2, 4)
    want = np.einsum(subscripts, view, y)
    on = machine(monkeypatch, chip)
    result = aligned(np.full(want.shape, 9, np.float32))
    tw.einsum(subscripts, on.array(view), on.array(y), out=on.array(result))
    on.finish()
    np.testing.assert_array_equal(result, want)
    products = [str(x[0]) for x in on.machine.launches if "gemm" in str(x[0])]
    assert len(products) == 1, products
    assert ("_gathered_" in products[0]) == (chip == "sm_80")


@pytest.mark.parametrize("chip", ["sm_90a", "gfx942"])
def test_copies_that_transpose_go_by_tiles_in_shared_memory(monkeypatch, chip):
    """As of images to channels last; not where rows are too short for 16 bytes."""
    on = machine(monkeypatch, chip)
    for shape, dtype, tiled in (((3, 24, 35), np.float16, True), ((2, 33, 70), np.float32, False),
                                ((2, 68, 17), np.float32, True), ((1, 8, 64), np.float16, False)):
        x = aligned(np.random.default_rng(3).integers(-30, 30, shape).astype(dtype))
        result = aligned(np.full((shape[0], *shape[:0:-1]), 99, dtype))
        on.machine.launches.clear()
        tw.einsum("nab->nba", on.array(x), out=on.array(result))
        on.finish()
        np.testing.assert_array_equal(result, x.transpose(0, 2, 1))
        assert ["rewrite" in str(x[0]) for x in on.machine.launches] == [tiled]


def test_with_an_epilogue_and_again(monkeypatch):
    """Bias and relu in the kernel; a second call with other arrays repeats it."""
    rng = np.random.default_rng(2)
    y, bias = rng.integers(-3, 4, (3, 3, 8, 5)).astype(np.float32), rng.integers(-3, 4, 5).astype(np.float32)
    on = machine(monkeypatch, "sm_80")
    for _ in range(3):
        x = aligned(rng.integers(-3, 4, (2, 7, 7, 8)).astype(np.float32))
        view = windows(x, 3, 1, 1)
        want = np.maximum(np.einsum("nhwrtc,rtco->nhwo", view, y) + bias, 0)
        result = aligned(np.full(want.shape, 9, np.float32))
        on.machine.launches.clear()
        tw.einsum("nhwrtc,rtco->nhwo", on.array(view), on.array(y), out=on.array(result), epilogue=RELU,
                  operands={"bias": on.array(bias)})
        on.finish()
        np.testing.assert_array_equal(result, want)
        assert "_gathered_a" in str(on.machine.launches[-1][0])


def RELU(acc, bias):
    return tw.maximum(acc + bias, 0)


@pytest.mark.parametrize("seed", range(12))
def test_windows_at_random(monkeypatch, seed):
    """Any order of axes in the arrays and in the result, odd sizes, batches and groups."""
    rng = np.random.default_rng(seed)
    dtype = rng.choice(["float16", "float32"])
    g, n, c, o = (int(rng.choice(x)) for x in ([1, 2, 3], [1, 2, 3], [1, 4, 8, 12, 5], [1, 2, 9]))
    r, step = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    h, w = (int(x) for x in rng.integers(r, r + 6, 2))
    order = rng.permutation(5)
    memory = rng.integers(-3, 4, np.array([g, n, h, w, c])[order]).astype(dtype)
    x = aligned(memory).transpose(np.argsort(order))
    a = [windows(x[i], r, step, 1) for i in range(g)]
    view = as_strided(a[0], (g, *a[0].shape), (x.strides[0], *a[0].strides))
    labels = {"g": g, "r": r, "t": r, "c": c, "o": o}
    of_b, of_c = (list(rng.permutation(list(x))) for x in ("grtco", "gnhwo"))
    y = rng.integers(-3, 4, [labels[label] for label in of_b]).astype(dtype)
    subscripts = f"gnhwrtc,{''.join(of_b)}->{''.join(of_c)}"
    want = np.einsum(subscripts, view.astype(np.float64), y.astype(np.float64))
    on = machine(monkeypatch, "sm_80")
    result = aligned(np.full(want.shape, 9, dtype))
    tw.einsum(subscripts, on.array(view), on.array(y), out=on.array(result))
    on.finish()
    np.testing.assert_array_equal(result, want)


# n, h, w, c, rows and columns of the kernel, steps, dilation, outputs
IMAGES = [(3, 9, 12, 64, 3, 3, 1, 1, 72), (1, 23, 19, 128, 2, 3, 2, 1, 40), (2, 14, 13, 64, 3, 1, 1, 2, 24),
          (2, 17, 16, 192, 1, 2, 3, 1, 8), (2, 9, 11, 32, 3, 2, 1, 2, 16), (1, 12, 9, 96, 3, 3, 2, 1, 24),
          (2, 6, 4, 192, 3, 3, 2, 1, 8)]


@pytest.mark.parametrize(("shape", "subscripts"), [
    *zip(IMAGES, ["nhwrtc,rtco->nhwo", "nhwrtc,ortc->nohw"] * 4), (IMAGES[-1], "nhwrtc,rtco->wnoh")], ids=str)
def test_windows_by_tensor_maps_of_images(monkeypatch, shape, subscripts):
    """Hopper's kernel: images on edges of tiles, of a batch, steps, dilations, k that is no multiple of a tile's."""
    n, h, w, c, r, t, step, dilation, o = shape
    rng = np.random.default_rng(0)
    x = aligned(rng.integers(-3, 4, (n, h, w, c)).astype(np.float16))
    a, b, d, e = x.strides
    high, wide = ((size - (taps - 1) * dilation - 1) // step + 1 for size, taps in ((h, r), (w, t)))
    view = as_strided(x, (n, high, wide, r, t, c), (a, b * step, d * step, b * dilation, d * dilation, e))
    y = aligned(rng.integers(-3, 4, (r, t, c, o) if "rtco" in subscripts else (o, r, t, c)).astype(np.float16))
    want = np.einsum(subscripts, view.astype(np.float64), y.astype(np.float64))
    on = machine(monkeypatch, "sm_90a")
    monkeypatch.setattr("tilewright.compiled.gathered.BY_WARPS", ())
    result = aligned(np.full(want.shape, 9, np.float16))
    tw.einsum(subscripts, on.array(view), on.array(y), out=on.array(result))
    on.finish()
    np.testing.assert_array_equal(result, want.astype(np.float16))
    assert any("_windows_" in str(x[0]) for x in on.machine.launches)


def test_sums_are_rounded_to_the_format_of_out_by_the_kernel(monkeypatch):
    """As a convolution of bf16 wants them: neither f32 in memory nor a second launch."""
    rng, bf16 = np.random.default_rng(4), FORMATS["bf16"].dtype
    a, b = (aligned(rng.integers(-3, 4, shape).astype(bf16)) for shape in ((3, 5, 64), (64, 8)))
    result, on = aligned(np.zeros((5, 3, 8), bf16)), machine(monkeypatch, "sm_80")
    tw.einsum("aij,jk->iak", on.array(a), on.array(b), out=on.array(result))
    on.finish()
    np.testing.assert_array_equal(result, np.einsum("aij,jk->iak", a.astype(float), b.astype(float)).astype(bf16))
    assert len(on.machine.launches) == 1


@pytest.mark.parametrize("begin", [0, -64])
def test_a_result_right_behind_images_is_written_in_place(monkeypatch, begin):
    """The matrix that stands for their windows ends where they do. Not where the result begins inside of them."""
    rng, on = np.random.default_rng(5), machine(monkeypatch, "sm_80")
    memory = aligned(rng.integers(-3, 4, 6*6*64 + 16*8).astype(np.float16))
    like = windows(memory[:6*6*64].reshape(1, 6, 6, 64), 3, 1, 1)
    view = np.ndarray(like.shape, like.dtype, memory, 0, like.strides)              # whose base is the memory
    result = memory[6*6*64 + begin:][:16*8].reshape(1, 4, 4, 8)
    y = rng.integers(-3, 4, (3, 3, 64, 8)).astype(np.float16)
    want = np.einsum("nhwrtc,rtco->nhwo", view.astype(float), y.astype(float))
    tw.einsum("nhwrtc,rtco->nhwo", on.array(view), on.array(y), out=on.array(result))
    on.finish()
    np.testing.assert_array_equal(result, want.astype(np.float16))
    assert (len(on.machine.launches) == 1) == (begin == 0)
