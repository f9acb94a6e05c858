"""Products of operands that kernels take by tensor maps, on the fake driver: maps follow addresses and strides."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.arrays import small_integers
from tests.helpers.gpus import aligned
from tilewright import formats
from tilewright.runtime.cuda import module

PLAN = "wgmma 64x64x64 stages=2 warpgroups=1 store=tma"


def numbers(*shape, seed=0, name="bf16"):
    """Whole numbers, the first at a multiple of 16 bytes."""
    return aligned((small_integers(seed, shape, np.int64) // 2).astype(formats.FORMATS[name].dtype))


def wide(x):
    return x.astype(np.float64)


def multiplied(on, a, b, **options):
    got = tw.matmul(on.array(a), on.array(b), plan=PLAN, out_dtype="f32", **options)
    on.finish()
    np.testing.assert_array_equal(got.host, wide(a) @ wide(b))


def test_addresses_that_change(on):
    """The same launch with other maps; those of addresses that came before are there still, also for a new C."""
    pairs = [(numbers(70, 72, seed=i), numbers(72, 80, seed=9 - i)) for i in range(3)]
    c = [aligned(np.full((70, 80), np.nan, np.float32)) for _ in pairs]
    for _ in range(2):
        for (a, b), out in zip(pairs, c):
            tw.matmul(on.array(a), on.array(b), on.array(out), plan=PLAN)
            on.finish()
            np.testing.assert_array_equal(out, wide(a) @ wide(b))
            out[:] = np.nan
    assert len(on.made) == 1
    assert on.machine.names().count("cuTensorMapEncodeTiled") == 9
    assert len(on.machine.launches) == 6


# Operands as the plan takes them where they are: the map has their strides.
CASES = {
    "columns": (lambda: numbers(64, 72).T, lambda: numbers(80, 64, seed=1).T),
    "views of odd size": (lambda: numbers(70, 80)[:67, 8:75], lambda: numbers(72, 96, seed=1)[:67, 16:52]),
    "one row": (lambda: numbers(1, 67), lambda: numbers(67, 72, seed=1)),
    "stacks": (lambda: numbers(3, 65, 72), lambda: numbers(3, 72, 16, seed=1)),
    "gaps": (lambda: numbers(4, 9, 72)[::2], lambda: numbers(2, 72, 8, seed=1)),
    "one A": (lambda: numbers(9, 72), lambda: numbers(3, 72, 24, seed=1)),
    "one B for every second axis": (lambda: numbers(2, 2, 9, 72), lambda: numbers(2, 1, 72, 24, seed=1)),
    "rows of heads": (lambda: numbers(9, 3, 64).swapaxes(0, 1), lambda: numbers(24, 3, 64).transpose(1, 2, 0)),
}


@pytest.mark.parametrize("case", CASES)
def test_operands_where_they_are(on, case):
    a, b = (make() for make in CASES[case])
    multiplied(on, a, b)
    assert {name.split("_")[0] for name, _, _ in on.machine.launches} == {"wgmma"}


def test_c_in_columns_with_alpha_and_beta(on):
    a, b, c = numbers(16, 72), numbers(72, 40, seed=1), numbers(40, 16, seed=2, name="f32").T
    wanted = 3 * (wide(a) @ wide(b)) - 2 * wide(c)
    tw.gemm(3, on.array(a), on.array(b), -2, on.array(c), plan=PLAN)
    on.finish()
    np.testing.assert_array_equal(c, wanted)


def test_what_no_map_describes_is_multiplied_by_another_plan(on):
    """Rows that are no multiple of 16 bytes apart, an address, rows that share memory; without a plan of one's own."""
    b = numbers(64, 16, seed=1)
    for a in (numbers(9, 65)[:, :64], numbers(9, 80)[:, 1:65], np.broadcast_to(numbers(1, 64), (9, 64))):
        got = tw.matmul(on.array(a), on.array(b), out_dtype="f32")
        on.finish()
        np.testing.assert_array_equal(got.host, wide(a) @ wide(b))
        assert on.made[-1].plan.algorithm == "mma"
        with pytest.raises(ValueError, match=r"A must begin at a multiple of 16 bytes, and its rows .* such multi"):
            tw.matmul(on.array(a), on.array(b), plan=PLAN, out_dtype="f32")


def test_compiled_and_bound(on):
    kernel = tw.compile(tw.Gemm(65, 40, 72, "bf16", "bf16", "f32", "nt"), "sm_90a", PLAN)
    a, b = numbers(65, 72), numbers(40, 72, seed=1).T
    out = on.array(aligned(np.full((65, 40), np.nan, np.float32)))
    bound = kernel.bind(on.array(a), on.array(b), out)
    a[0, :] = 1                                     # what it holds when it runs is what counts
    bound()
    on.finish()
    np.testing.assert_array_equal(out.host, wide(a) @ wide(b))
    np.testing.assert_array_equal(kernel(np.array(a), np.array(b)), wide(a) @ wide(b))
    narrow = tw.compile(tw.Gemm(65, 40, 72, "bf16", "bf16", "bf16", "nt"), "sm_90a", PLAN)(np.array(a), np.array(b))
    np.testing.assert_array_equal(narrow, (wide(a) @ wide(b)).astype(narrow.dtype))
    with pytest.raises(ValueError, match=r"plan wgmma .* cannot run these operands: A must begin at a multiple of 16"):
        kernel.bind(on.array(numbers(65, 76)[:, 1:73]), on.array(b), out)


def test_maps_in_the_manifest():
    """What another program must know to encode them: tiles, and dimensions by the names of what it has."""
    kernel = tw.compile(tw.Gemm(128, 40, 72, "bf16", "bf16", "f32", "tt", batch=3), "sm_90a", PLAN)
    manifest, tile = kernel.manifest, {"element": "i16", "box": [64, 64, 1], "swizzle": 128, "steps": []}
    given = {row["name"]: row for row in manifest["arguments"]}
    assert given["a"] == {"name": "a", "offset": 48, "type": "map of 64x64x1 i16, swizzled by 128 bytes", "size": 128,
                          "tile": tile}
    assert manifest["maps"] == {
        "a": {"of": "a", "dims": ["m", "k", "batch"], "strides": ["lda", "stride_a"]},
        "b": {"of": "b", "dims": ["k", "n", "batch"], "strides": ["ldb", "stride_b"]},
        "c_map": {"of": "c", "dims": ["n", "m", "batch"], "strides": ["ldc", "stride_c"]}}
    assert manifest["grid"] == [6, 1, 1]


def test_maps_are_kept_up_to_a_number(on, monkeypatch):
    from tilewright.targets.tensor_maps import Tile, TiledMap
    monkeypatch.setattr(module.TensorMaps, "MOST", 2)
    maps, x = module.TensorMaps(TiledMap(Tile("f32", (8, 8)), (16, 16), (64,))), np.zeros((64, 16), np.float32)
    at = [on.machine.array(x) + 1024*i for i in range(4)]
    found = [maps(address) for address in (*at, at[3], at[0])]
    assert len(maps.found) <= 2
    assert len(set(found)) == 5
    assert found[3] == found[4]
    with pytest.raises(ValueError, match="a tensor begins at a multiple of 16 bytes"):
        maps(at[0] + 4)
