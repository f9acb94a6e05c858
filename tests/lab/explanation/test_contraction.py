"""tilewright.einsum_path: what it says is what einsum runs."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.cpu import engine

SIZES = {"a": 19, "b": 3, "c": 17, "d": 2, "e": 16, "f": 16, "g": 4}
# what is multiplied, how, and how A, B and C are packed and stored
CASES = {
    "ae,ec->ac": ("matrices as they lie", ()),
    "gae,gec->gac": ("matrices as they lie, 4 times", ()),
    "bea,ec->bac": ("packed and stored by tables of offsets", ("rows that lie side by side", "one stride", "one")),
    "ge,acef->gcfa": ("packed and stored by tables of offsets", ("one stride", "in squares of", "in runs of")),
    "aef,cfe->ac": ("packed and stored by tables of offsets", ("along k", "along k", "one stride")),
}


def arrays(subscripts, dtype=np.float32):
    return [np.ones([SIZES[x] for x in term], dtype) for term in subscripts.split("->")[0].split(",")]


@pytest.mark.parametrize("subscripts", CASES)
def test_the_product_that_runs(subscripts, monkeypatch):
    xs = arrays(subscripts)
    out = np.empty([SIZES[x] for x in subscripts.split("->")[1]], np.float32)
    path, found = tw.einsum_path(subscripts, *xs, out=out, threads=1)
    assert path == ["einsum_path", (0, 1)]
    (step,) = found.steps
    how, reads = CASES[subscripts]
    assert step.how == how
    for (_, text), part in zip(step.reads, reads, strict=True):
        assert part in text
    recipes = []
    monkeypatch.setattr(engine, "note", lambda recipe, *args, **options: recipes.append(recipe))
    tw.einsum(subscripts, *xs, out=out, threads=1)
    (recipe,) = recipes
    assert step.plan == str(recipe.plan)
    labels, sizes = subscripts.replace("->", ",").split(","), {}
    for name, (of, extent, _) in step.groups.items():
        assert extent == np.prod([SIZES[x] for x in of], dtype=int)
        sizes[name] = extent
    a, b, c = map(set, labels)
    assert {name: set(of) for name, (of, _, _) in step.groups.items()} in (
        {"batch": a & b & c, "m": m - (a & b), "n": n - (a & b), "k": (a & b) - c} for m, n in ((a, b), (b, a)))
    assert step.operations == 2 * np.prod(list(sizes.values()))
    assert step.least_bytes == sum(x.nbytes for x in (*xs, out)) <= step.bytes
    assert f"{step.operations / step.seconds / 1e9:.3g} GFLOP/s" in str(found)


def test_chains_sums_and_what_is_no_product():
    x = np.empty((9, 9))
    path, found = tw.einsum_path("ij,jk,kl->il", np.empty((2, 9)), x, x[:, :3])
    assert path[1:] == [tuple(step) for step in np.einsum_path("ij,jk,kl->il", np.empty((2, 9)), x, x[:, :3])[0][1:]]
    assert [step.subscripts for step in found.steps] == ["ij,jk->ik", "ik,kl->il"]
    y = np.ones((9, 9))
    assert np.array_equal(tw.einsum("ij,jk,kl->il", y[:2], y, y[:, :3], optimize=path), np.full((2, 3), 81.0))
    _, found = tw.einsum_path("ijz,ij->ij", np.empty((9, 9, 4)), x)
    assert [step.how.partition(":")[0] for step in found.steps] == ["summed by NumPy, before any product of it",
                                                                    "no label is summed"]
    assert "empty" in str(tw.einsum_path("ij,jk", x[:, :0], x[:0])[1])
    assert "copied to a matrix first" in str(tw.einsum_path("aef,cfe->ac", *arrays("aef,cfe->ac", np.complex64))[1])
    assert json.loads(json.dumps(found.record()))["text"] == str(found).splitlines()
    with pytest.raises(ValueError, match="label 'j' has size 9 before"):
        tw.einsum_path("ij,jk", x, x[:4])


def test_the_command(capsys):
    from tilewright.lab.cli import app

    def said(*words):
        with pytest.raises(SystemExit) as left:
            app(["einsum", *words])
        shown = capsys.readouterr()
        return left.value.code or 0, shown.out + shown.err

    code, text = said("aef,cfe->ac", "a=19", "c=17", "e=16", "f=16", "--threads", "1")
    assert code == 0
    assert text == str(tw.einsum_path("aef,cfe->ac", *arrays("aef,cfe->ac"), threads=1)[1]) + "\n"
    for words, message in [(("ab,bc", "a=2", "b=3"), "LABEL=SIZE is missing for c"),
                           (("ab,bc", "a=2", "b=3", "c=x"), "not 'c=x'"), (("...a,a", "a=3"), "has '...'"),
                           (("ab,bc", "a=2", "b=3", "c=4", "d=5"), "names d, which"),
                           (("a,a", "a=2", "--dtype", "i8-i8-i32"), "--dtype must be one format")]:
        code, text = said(*words)
        assert code == 2
        assert message in text
