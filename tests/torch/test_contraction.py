"""twt.einsum beside torch.einsum: values, gradients, tangents, vmap, torch.compile without a graph break."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: there is nothing to differentiate")
twt = pytest.importorskip("tilewright.torch")

from torch.library import opcheck  # noqa: E402

CASES = {
    "ij,jk->ik": ((3, 4), (4, 5)), "bij,bjk": ((2, 3, 4), (2, 4, 5)), "abcd,dcef->aebf": ((2, 3, 4, 5), (5, 4, 2, 3)),
    "...ij,...kj->...ik": ((2, 1, 3, 4), (6, 5, 4)), "ij,jk,kl->il": ((3, 4), (4, 5), (5, 2)), "i,i->": ((4,), (4,)),
    "i,j->ij": ((3,), (4,)), "ij,ij->ij": ((3, 4), (3, 4)), "iij,jk->ik": ((3, 3, 4), (4, 5)), "ii->i": ((3, 3),),
    "iji,jk->k": ((3, 4, 3), (4, 5)), "ij,k->ik": ((3, 4), (5,)), "ij,jk->k": ((3, 1), (4, 5)), "ij->ji": ((3, 4),),
    "ij,jk->ijk": ((1, 4), (4, 1)), "ij,jk,ik->": ((3, 4), (4, 5), (3, 5)), "iii->": ((3, 3, 3),),
}


def given(name, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in CASES[name]]


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_are_torchs(name):
    for dtype in (torch.float64, torch.complex64):
        tensors = given(name, dtype)
        found, wanted = twt.einsum(name, *tensors), torch.einsum(name, *tensors)
        g = torch.randn_like(wanted)
        pairs = zip(torch.autograd.grad(found, tensors, g), torch.autograd.grad(wanted, tensors, g))
        for x, y in ((found, wanted), *pairs):
            assert x.shape == y.shape
            assert torch.allclose(x, y, atol=1e-11 if dtype == torch.float64 else 1e-4)
    tensors = tuple(x.detach() for x in given(name))
    moved = tuple(torch.randn_like(x) for x in tensors)
    for x, y in zip(*(torch.func.jvp(lambda *x, f=f: f(name, *x), tensors, moved) for f in (twt.einsum, torch.einsum))):
        assert torch.allclose(x, y, atol=1e-11)


def test_second_derivatives_maps_and_lists():
    a, b = given("abcd,dcef->aebf")
    assert torch.autograd.gradgradcheck(lambda a, b: twt.einsum("abcd,dcef->aebf", a[:1], b[..., :1]), (a, b))
    for name, dims in (("bcd,dcef->eb", (0, None)), ("abcd,dce->ae", (None, 3)), ("bcd,dcf->fb", (0, 2))):
        found, wanted = (torch.vmap(lambda x, y, f=f: f(name, x, y), dims)(a, b) for f in (twt.einsum, torch.einsum))  # noqa: B023
        assert torch.allclose(found, wanted)
    x, y = given("ij,jk->ik")
    assert torch.allclose(twt.einsum(x, [0, 1], y, [1, 2], [2, 0]), (x @ y).t())
    with pytest.raises(TypeError, match=r"a is torch.float64 and b is torch.float32"):
        twt.einsum("ij,jk", x, y.float())
    with pytest.raises(ValueError, match="label 'j' has size 4 before"):
        twt.einsum("ij,jk", x, x)


def test_torchs_checks_and_compilation():
    a, b = given("bij,bjk", torch.float32)
    opcheck(torch.ops.tilewright.einsum.default, ("bij,bjk->bik", a, b))

    def f(a, b, c):
        return twt.einsum("bij,bjk,kl->bil", a, b, c).relu() + twt.einsum("bij,...->bi", a, c.sum())[..., None]
    c = torch.randn(5, 6)
    for dynamic in (False, True):
        compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        for found, wanted in zip(torch.autograd.grad(compiled(a, b, c).sum(), (a, b)),
                                 torch.autograd.grad(f(a, b, c).sum(), (a, b))):
            assert torch.allclose(found, wanted, atol=1e-5)
