"""Launches of the GPU ladder, on the fake driver of tests/doubles/fake_cuda.py."""

from __future__ import annotations

import numpy as np
import pytest

from tests.doubles.fake_cuda import install
from tilewright.formats import get
from tilewright.lab.ladder import run_nvidia


@pytest.fixture
def fake(monkeypatch):
    return install(monkeypatch)


def operands(m, n, k):
    rng = np.random.default_rng(0)
    return *(rng.integers(-4, 5, size).astype(np.float32) for size in ((m, k), (k, n))), np.full(
        (m, n), 2.0, np.float32
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("step", ["naive", "registers", "stored", "async", "dispatch"])
def test_a_launch_computes_the_product(fake, step):
    m, n, k = 130, 9, 7
    a, b, c = operands(m, n, k)
    launch = run_nvidia.prepare(step, m, n, k, fake.array(a), k, fake.array(b), n, fake.array(c), n, 2.0, -1.0)
    launch(0)
    fake.run(0)
    np.testing.assert_array_equal(c, 2 * (a @ b) - 2)


def test_textures_live_as_long_as_the_launch(fake):
    m, n, k = 4, 8, 12
    a, b, c = operands(m, n, k)
    launch = run_nvidia.prepare("texture", m, n, k, fake.array(a), k, fake.array(b), n, fake.array(c), n)
    assert sorted(size for _, size in fake.textures.values()) == sorted([a.nbytes, b.nbytes])
    del launch
    assert fake.textures == {}


def test_what_textures_cannot_look_at_is_refused_or_dispatched(fake):
    m, n, k = 4, 7, 12
    a, b, c = operands(m, n, k)
    where = fake.array(a), k, fake.array(b), n, fake.array(c), n
    with pytest.raises(ValueError, match="these matrices are not aligned"):
        run_nvidia.prepare("texture", m, n, k, *where)
    run_nvidia.prepare("dispatch", m, n, k, *where)(0)
    fake.run(0)
    assert [name for name, _, _ in fake.launches] == ["gpu10_stored"]


@pytest.mark.parametrize("step", ["ring", "multicast", "pingpong"])
def test_steps_on_tensor_cores_take_bf16_and_the_transposed_b(fake, step):
    m, n, k = 130, 6, 72
    a, b, c = (x.astype(get("bf16").dtype) for x in operands(m, n, k))
    b = np.ascontiguousarray(b.T)
    where = [fake.array(a), k, fake.array(b), k, fake.array(c), n]
    run_nvidia.prepare(step, m, n, k, *where, 2.0, -1.0)(0)
    fake.run(0)
    np.testing.assert_array_equal(c.astype("f4"), (2 * (a.astype("d") @ b.T.astype("d")) - 2).astype(c.dtype))
    with pytest.raises(ValueError, match=r"move in pieces of 16 bytes.* k = 71"):
        run_nvidia.prepare(step, m, n, k - 1, *where)


def test_nothing_to_do_is_no_launch(fake):
    run_nvidia.prepare("stored", 0, 5, 3, 0, 3, 0, 5, 0, 5)(0)
    assert fake.launches == []


def test_an_unknown_step(fake):
    with pytest.raises(ValueError, match=r"no step 'v4' of the GPU ladder, .*; the steps are naive, .* dispatch"):
        run_nvidia.prepare("v4", 1, 1, 1, 0, 1, 0, 1, 0, 1)
