"""Products of Dask arrays: random shapes and chunks against exact integers and float64, formats, options, schedules."""

from __future__ import annotations

import warnings
from collections import Counter

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

da = pytest.importorskip("dask.array")
import dask  # noqa: E402
from dask.array.core import PerformanceWarning  # noqa: E402

import tilewright.dask as twd  # noqa: E402
from tilewright.dask import blocks, graphs  # noqa: E402

BF16 = ml_dtypes.bfloat16
FORMATS = [np.float32, np.int8, BF16, np.float64, np.uint8, np.int16, np.int32, np.float16, ml_dtypes.float8_e4m3fn,
           np.complex64]
SHAPES = [(7, 13, 9), (4, 0, 3), (1, 5, 3), (0, 3, 2), (5, 4, 0), (2, 3, 1), (17, 31, 2)]


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture(params=[0, 1], ids=["blocks", "tiles"])
def chains(request, monkeypatch):
    """Chains of one block of the result, or of several, as on a cluster of one thread."""
    monkeypatch.setattr(blocks, "cluster_threads", lambda: request.param)
    monkeypatch.setattr(graphs, "CHAINS", 2)


def numbers(rng, shape, dtype=np.float32):
    """Small whole numbers, whose products and sums every format's accumulator holds."""
    low = 0 if np.dtype(dtype).kind == "u" else -4
    return rng.integers(low, 5, shape).astype(dtype)


def chunked(rng, x, **like):
    """A Dask array with random chunks, empty ones among them; `like`: chunks of axes."""
    cut = []
    for axis, n in enumerate(x.shape):
        at = np.sort(rng.integers(0, n + 1, rng.integers(0, 4)))
        cut.append(like.get(f"axis{axis}", tuple(int(v) for v in np.diff([0, *at, n]))))
    return da.from_array(x, chunks=tuple(cut))


def some(request, ordinary):
    """Whether all variants are tested; a skip if not, and this is no ordinary one."""
    if not request.config.getoption("--all-ways") and not ordinary:
        pytest.skip("--all-ways takes all variants")
    return request.config.getoption("--all-ways")


def quietly(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        return function(*args, **kwargs)


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda x: np.dtype(x).name)
def test_random_shapes_and_chunks(dtype, request):
    """Whole numbers are exact in every order; results have the dtype of tilewright.matmul. Some formats and shapes: all
    with --all-ways all."""
    thorough = some(request, dtype in FORMATS[:2])
    rng = np.random.default_rng(1)
    empty = quietly(twd.matmul, da.zeros((0, 0), chunks=((0, 0), (0, 0)), dtype=dtype),
                    da.zeros((0, 3), chunks=1, dtype=dtype))
    assert empty.compute().shape == (0, 3)
    for shape in SHAPES if thorough else SHAPES[:2]:
        m, k, n = shape
        a, b = numbers(rng, (m, k), dtype), numbers(rng, (k, n), dtype)
        x = quietly(twd.matmul, chunked(rng, a), chunked(rng, b), schedule=("auto", "blocks")[m % 2])
        exact, found = tw.matmul(a, b), x.compute()
        assert x.shape == found.shape == exact.shape
        assert x.dtype == found.dtype == exact.dtype
        np.testing.assert_array_equal(found, exact)


def test_axes_before_the_matrices_and_vectors(request):
    rng = np.random.default_rng(2)
    every = request.config.getoption("--all-ways")
    for of_a, of_b in (((2, 1, 4, 5), (3, 5, 6)), ((4, 5), (5,)), ((4, 5), (2, 5, 6)), ((3, 4, 5), (5, 6)),
                       ((5,), (5, 6)), ((5,), (5,)), ((3, 4, 5), (5,)), ((5,), (2, 5, 3)))[:None if every else 2]:
        a, b = numbers(rng, of_a), numbers(rng, of_b)
        x = quietly(twd.matmul, chunked(rng, a), chunked(rng, b))
        np.testing.assert_array_equal(x.compute(), a @ b)
        assert x.shape == (a @ b).shape


def test_error_beside_float64():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((90, 300), np.float32), rng.standard_normal((300, 70), np.float32)
    exact, bound = a.astype(float) @ b, np.abs(a).astype(float) @ np.abs(b)
    for schedule in ("reload", "panels", "blocks"):
        x = twd.matmul(da.from_array(Stored(a), chunks=(40, 77)), da.from_array(Stored(b), chunks=(77, 30)),
                       schedule=schedule)
        assert (abs(x.compute() - exact) / bound).max() < 300 * 2.0**-24


class Stored:
    """An array that is read like a file. `reads`: how often, by index."""

    def __init__(self, x):
        self.x, self.shape, self.dtype, self.ndim, self.reads = x, x.shape, x.dtype, x.ndim, Counter()

    def __getitem__(self, index):
        self.reads[str(index)] += 1
        return self.x[index]


def test_schedules_read_storage_as_they_say(chains):
    """And give the same bits: the order of sums is that of k."""
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((6, 8), np.float32), rng.standard_normal((8, 9), np.float32)
    found = {}
    for schedule, most in ("auto", 3), ("reload", 3), ("panels", 1), ("blocks", 1):
        x, y = Stored(a), Stored(b)
        product = twd.matmul(da.from_array(x, chunks=(2, 2)), da.from_array(y, chunks=(2, 3)), schedule=schedule)
        x.reads.clear()
        found[schedule] = product.compute()
        assert set(x.reads.values()) == {most}, schedule
        tasks = [key for key in product.dask if str(key[0]).startswith("tilewright-matmul") and "sums" in key[0]]
        assert bool(tasks) == (most == 1)
    assert len({x.tobytes() for x in found.values()}) == 1


def test_panels_advance_together(chains):
    """No block of a later step of k is made before the last use of the blocks two steps before."""
    a, b = (da.random.default_rng(i).standard_normal((8, 8), chunks=2, dtype=np.float32) for i in range(2))
    product = twd.matmul(a, b)
    graph = dict(product.__dask_optimize__(product.dask, product.__dask_keys__()))
    made, levels = [key for key in graph if key[0].endswith(("-a", "-b"))], {}

    def level(key):
        if key not in levels:
            levels[key] = 1 + max((level(x) for x in graph[key].dependencies), default=0)
        return levels[key]
    assert len(made) == 24
    by_step = {p: {level(key) for key in made if key[2 if key[0].endswith("-a") else 1] == p} for p in (1, 2, 3)}
    assert max(by_step[1]) < min(by_step[2])
    assert max(by_step[2]) < min(by_step[3])
    np.testing.assert_allclose(product.compute(), a.compute() @ b.compute(), rtol=1e-4, atol=1e-5)


def test_epilogue_on_the_last_block_of_k(chains):
    rng = np.random.default_rng(5)
    a, b, bias, c = (numbers(rng, x) for x in ((8, 12), (12, 6), (6,), (8, 6)))
    row = da.from_array(numbers(rng, (8, 1)), chunks=(5, 1))
    x = quietly(twd.matmul, da.from_array(a, chunks=3), da.from_array(b, chunks=3), alpha=2, beta=3, c=c,
                out_dtype="bf16", epilogue=lambda acc, bias, row, s: tw.relu(acc + bias + row) * s,
                operands={"bias": bias, "row": row, "s": 2.0})
    wanted = np.maximum(2 * (a @ b) + 3 * c + bias + row.compute(), 0) * 2
    assert x.dtype == BF16
    np.testing.assert_array_equal(x.compute(), wanted.astype(BF16))


def test_several_results_and_reductions(request):
    some(request, False)
    rng = np.random.default_rng(6)
    a, b = numbers(rng, (8, 12)), numbers(rng, (12, 6))
    with pytest.warns(PerformanceWarning, match="since a reduction of the epilogue needs all of it at once"):
        found = twd.matmul(da.from_array(a, chunks=3), da.from_array(b, chunks=3),
                           epilogue=lambda acc: (acc * 2, tw.row_sum(acc), tw.column_max(acc)))
    y, rows, columns = dask.compute(*found)
    np.testing.assert_array_equal(y, 2 * (a @ b))
    np.testing.assert_array_equal(rows, (a @ b).sum(1))
    np.testing.assert_array_equal(columns, (a @ b).max(0))
    pairs = twd.matmul(da.from_array(a, chunks=4), da.from_array(b, chunks=(4, 2)),
                       epilogue=lambda acc: tw.pairs(acc)[1])
    np.testing.assert_array_equal(pairs.compute(), (a @ b)[:, 1::2])
    with pytest.raises(ValueError, match="even sizes"):
        twd.matmul(da.from_array(a, chunks=3), da.from_array(b, chunks=3), epilogue=lambda acc: tw.pairs(acc)[1])


def test_a_reduction_alone_is_one_array():
    a, b = numbers(np.random.default_rng(5), (7, 11)), numbers(np.random.default_rng(6), (11, 5))
    x, y = da.from_array(a, chunks=(3, 4)), da.from_array(b, chunks=(4, 5))
    found = twd.matmul(x, y, epilogue=tw.row_sum)
    assert found.shape == (7,)
    np.testing.assert_array_equal((found + 1).compute(), (a @ b).sum(1) + 1)


def test_truth_values_over_several_blocks_of_k():
    rng = np.random.default_rng(7)
    a, b = rng.random((7, 31)) < 0.2, rng.random((31, 5)) < 0.2
    for rows in 3, 7:
        x, y = da.from_array(a, chunks=(rows, 4)), da.from_array(b, chunks=(4, 2))
        for found, wanted in ((twd.matmul(x, y), a @ b), (twd.einsum("ij,jk->ki", x, y), (a @ b).T)):
            assert found.dtype == bool
            assert found.compute().dtype == bool
            np.testing.assert_array_equal(found.compute(), wanted)


@pytest.mark.parametrize("subscripts", ["ii->i", "ij,k->ij", "iij,j->i"])
def test_einsum_of_a_label_that_one_operand_has_keeps_the_dtype(subscripts):
    """Dask adds bytes up in int64, which is not the result's dtype."""
    shapes = {"ii->i": [(4, 4)], "ij,k->ij": [(3, 4), (5,)], "iij,j->i": [(3, 3, 4), (4,)]}[subscripts]
    for dtype in np.int8, BF16:
        given = [numbers(np.random.default_rng(8), shape, dtype) for shape in shapes]
        found = twd.einsum(subscripts, *[da.from_array(x, chunks=2) for x in given])
        wanted = tw.einsum(subscripts, *given)
        assert found.dtype == found.compute().dtype == wanted.dtype
        np.testing.assert_array_equal(found.compute(), wanted)


def test_weights_that_every_task_reads_as_a_whole(request):
    rng = np.random.default_rng(7)
    a, w = rng.standard_normal((40, 64), np.float32), rng.standard_normal((64, 48), np.float32)
    q = tw.quantize(w, "i4", axis=-2)
    every = q, tw.pack(w), tw.quantize(w, "mxfp8", axis=-2), tw.pack(q, a="f32")
    for b in every if request.config.getoption("--all-ways") else every[:1]:
        x = twd.matmul(da.from_array(a, chunks=(17, 64)), b, batch_invariant=not isinstance(b, tw.Packed))
        np.testing.assert_allclose(x.compute(), tw.matmul(a, b), rtol=1e-4, atol=1e-4)
    with pytest.warns(PerformanceWarning, match="from 2 blocks of 32 to 1 block of 64"):
        twd.matmul(da.from_array(a, chunks=(17, 32)), q)


def test_packed_weights_travel_as_the_file_of_their_panels():
    import pickle
    packed = tw.pack(np.eye(8, dtype=np.float32))
    again = pickle.loads(pickle.dumps(blocks.Whole(packed))).value
    np.testing.assert_array_equal(tw.matmul(np.ones((2, 8), np.float32), again), np.ones((2, 8)))


@pytest.mark.parametrize("subscripts", [
    "ij,jk->ik", "abc,cbd->da", "bij,bjk->bik", "ij,jk,kl->li", "ii,ij->j", "ij,kl->", "i,j->ij", "ijk->ik",
    "...ij,jk->...ik", "ab,cd,be,df->ace", "ij,ij->ij"])
def test_einsum(subscripts, request):
    some(request, subscripts in ("abc,cbd->da", "ij,jk,kl->li", "ii,ij->j"))
    rng = np.random.default_rng(8)
    terms = subscripts.split("->")[0].split(",")
    sizes = {letter: 3 + i for i, letter in enumerate("abcdefijkl")}
    arrays = [numbers(rng, [2, 3] * term.startswith("...") + [sizes[x] for x in term.strip(".")]) for term in terms]
    given = [da.from_array(x, chunks=2) for x in arrays]
    found = quietly(twd.einsum, subscripts, *given)
    np.testing.assert_array_equal(found.compute(), np.einsum(subscripts, *arrays))
    assert found.dtype == np.float32


def test_tensordot_and_einsum_with_epilogue():
    rng = np.random.default_rng(9)
    a, b = numbers(rng, (3, 4, 5), np.int8), numbers(rng, (5, 4, 2), np.int8)
    given = [da.from_array(x, chunks=2) for x in (a, b)]
    wide = np.tensordot(a.astype(int), b.astype(int), ((1, 2), (1, 0)))
    x = twd.tensordot(*given, ((1, 2), (1, 0)), out_dtype="i32")
    np.testing.assert_array_equal(x.compute(), wide)
    y = twd.einsum("xyz,zyw->wx", *given, out_dtype="f32", epilogue=lambda acc, s: acc * s,
                   operands={"s": np.array([1, 2, 4], np.float32)})
    np.testing.assert_array_equal(y.compute(), wide.T * [1, 2, 4])
    with pytest.raises(TypeError, match="reduces rows or columns"):
        twd.einsum("xyz,zyw->wx", *given, epilogue=lambda acc: tw.row_sum(acc))


@pytest.mark.parametrize("reduce", ["sum", "argmin", "min", "any", "max_argmax", "logsumexp"])
def test_contract(reduce, request):
    some(request, reduce == "argmin")
    rng = np.random.default_rng(10)
    a, b = numbers(rng, (6, 11)), numbers(rng, (11, 5))
    if "arg" in reduce:
        a[1, 7] = a[1, 4] = b[5, 2] = np.nan
    wanted = tw.contract(lambda x, y: x - y, a, b, reduce=reduce)
    found = twd.contract(lambda x, y: x - y, da.from_array(a, chunks=(3, 3)), da.from_array(b, chunks=3), reduce=reduce)
    for x, y in zip(*((x if type(x) is tuple else (x,)) for x in (found, wanted))):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x.compute(), y, rtol=2e-6)


def test_contract_with_an_epilogue_takes_all_of_k(request):
    some(request, False)
    rng = np.random.default_rng(11)
    a, b = numbers(rng, (6, 4)), numbers(rng, (4, 5))
    with pytest.warns(PerformanceWarning, match="need all of k at once"):
        x = twd.contract(lambda x, y: (x - y)**2, da.from_array(a, chunks=2), da.from_array(b, chunks=2),
                         epilogue=lambda d: tw.sqrt(d))
    np.testing.assert_allclose(x.compute(), np.sqrt(((a[:, :, None] - b)**2).sum(1)), rtol=1e-6)


def test_chunks_that_do_not_match_are_cut_anew_and_say_what_that_costs():
    a, b = da.ones((8, 12), chunks=(4, 4), dtype="f4"), da.ones((12, 100), chunks=(5, 50), dtype="f4")
    text = ("a is rechunked along axis 1 from 3 blocks of 4 to 3 blocks of 5 and 2, as those of b along axis 0. This "
            "copies 384 bytes through 6 tasks")
    with pytest.warns(PerformanceWarning, match=text) as seen:
        twd.matmul(a, b)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert twd.matmul(a, b.rechunk({0: 4})).chunks == ((4, 4), (50, 50))


def test_chunks_of_unknown_sizes():
    rng = np.random.default_rng(12)
    a, b = numbers(rng, (9, 6)), numbers(rng, (6, 4))
    x = da.from_array(a, chunks=(3, 3))
    some = x[x[:, 0] > -2]
    found = twd.matmul(some, da.from_array(b, chunks=3), epilogue=lambda acc, s: acc * s, operands={"s": b[:1]})
    assert np.isnan(found.shape[0])
    np.testing.assert_array_equal(found.compute(), a[a[:, 0] > -2] @ b * b[:1])
    inner = twd.matmul(some.T, some)
    np.testing.assert_array_equal(inner.compute(), a[a[:, 0] > -2].T @ a[a[:, 0] > -2])
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        twd.matmul(some.T, da.ones((5, 4), chunks=1, dtype="f4"))
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        twd.contract(lambda x, y: x + y, some.T, some, reduce="argmin")


def test_names_of_blocks_have_the_plan():
    a, b = (da.from_array(np.ones((64, 64), np.float32), chunks=32) for _ in range(2))
    assert twd.matmul(a, b).name == twd.matmul(a, b).name
    plan = str(tw.plan(tw.Gemm(32, 32, 32), threads=1, batch_invariant=True))
    others = [twd.matmul(a, b, plan=plan), twd.matmul(a, b, alpha=2), twd.matmul(a, b, out_dtype="f64"),
              twd.matmul(a, b, epilogue=lambda acc: acc + 1), twd.matmul(a, b, epilogue=lambda acc: acc + 2)]
    assert len({x.name for x in (twd.matmul(a, b), *others)}) == 6
    np.testing.assert_array_equal(others[0].compute(), np.full((64, 64), 64))


def test_errors_come_before_anything_is_computed():
    a, b = da.ones((4, 4), chunks=2, dtype="f4"), da.ones((5, 4), chunks=2, dtype="f4")
    with pytest.raises(ValueError, match=r"axis 0 of b has size 5, and must have 4"):
        twd.matmul(a, b)
    with pytest.raises(ValueError, match="schedule must be one of auto, reload, panels, blocks"):
        twd.matmul(a, a, schedule="fast")
    with pytest.raises(ValueError, match='schedule="reload" is for operands'):
        twd.matmul(a.rechunk(3), a.rechunk(3), schedule="reload")
    with pytest.raises(TypeError, match="must have blocks that are NumPy arrays"):
        twd.matmul(da.ma.masked_array(a), a)
    with pytest.raises(TypeError, match="b of matmul and of grouped_matmul may be quantized"):
        twd.matmul(tw.quantize(np.ones((4, 32), np.float32), "i8"), b)
    with pytest.raises(ValueError, match="does not broadcast"):
        twd.matmul(a, a, epilogue=lambda acc, s: acc + s, operands={"s": np.ones(3, np.float32)})


def test_a_task_uses_its_share_of_threads(monkeypatch):
    seen = []
    monkeypatch.setattr(blocks, "_worker", lambda: ("here", 4))
    with blocks.share_of_threads():
        seen.append(tw.get_num_threads())
        with blocks.share_of_threads():
            seen.append(tw.get_num_threads())
        seen.append(tw.get_num_threads())
    assert seen == [4, 2, 4]
    assert not blocks._running["here"]


def test_sums_that_another_task_made_are_not_written():
    """A task may run twice: its operands are what they were."""
    a, b, sums = np.ones((4, 3), np.float32), np.ones((3, 5), np.float32), np.ones((4, 5), np.float32)
    work = blocks.Work("matmul", (), {"deterministic": True}, np.dtype("f4"), {"out_dtype": np.dtype("f4")})
    for _ in range(2):
        found = blocks.run(work, (0, 0), True, ("acc", "a", "b", "a", "b"), sums, a, b, a, b)
        assert (found == 7).all()
        assert (sums == 1).all()
