"""torch.vmap of operators: each result beside torch's, with gradients through it."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: there is nothing to map over")
twt = pytest.importorskip("tilewright.torch")

from torch.nn import functional as F  # noqa: E402

A, B, AS, BS = (torch.randn(shape, dtype=torch.float64) for shape in ((4, 6), (6, 3), (5, 4, 6), (5, 6, 3)))
STACK, STACKS = torch.randn(2, 4, 6, dtype=torch.float64), torch.randn(2, 5, 6, 3, dtype=torch.float64)
W, WS, BIAS, BIASES = (torch.randn(shape, dtype=torch.float64) for shape in ((3, 6), (5, 3, 6), (3,), (5, 3)))
CASES = {
    "a": (twt.mm, torch.mm, (AS, B), (0, None)), "b": (twt.mm, torch.mm, (A, BS), (None, 0)),
    "both": (twt.mm, torch.mm, (AS.movedim(0, 1), BS.movedim(0, 2)), (1, 2)),
    "stacks": (twt.bmm, torch.bmm, (AS[:, None].expand(5, 2, 4, 6), STACKS), (0, 1)),
    "one stack": (twt.bmm, torch.bmm, (STACK, STACKS), (None, 1)),
    "rows": (twt.linear, F.linear, (AS, W, BIAS), (0, None, None)), "x": (twt.linear, F.linear, (AS[0], W), (0, None)),
    "weights": (twt.linear, F.linear, (A, WS, BIAS), (None, 0, None)),
    "models": (twt.linear, F.linear, (A, WS, BIASES), (None, 0, 0)),
    "biases": (twt.linear, F.linear, (AS[None].expand(2, 5, 4, 6), W, BIASES), (1, None, 0)),
    "vectors": (twt.linear, F.linear, (AS[:, 0], WS, BIASES), (0, 0, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_beside_torchs(name):
    ours, theirs, given, dims = CASES[name]
    sides = []
    for function in ours, theirs:
        leaves = [x.clone().requires_grad_() for x in given]
        y = torch.vmap(function, dims)(*leaves)
        (y * torch.arange(y.numel()).view_as(y)).sum().backward()
        sides.append((y.detach(), *(x.grad for x in leaves)))
    for found, wanted in zip(*sides):
        assert torch.allclose(found, wanted, atol=1e-12)
    for _ in range(3):          # without gradients, where calls are repeated
        assert torch.allclose(torch.vmap(ours, dims)(*given), sides[1][0])


def test_an_activation_and_maps_within_maps():
    found = torch.vmap(lambda x, w: twt.linear(x, w, activation="gelu"), (None, 0))(A, WS)
    assert torch.allclose(found, torch.stack([F.gelu(A @ w.t()) for w in WS]))
    ws = WS.clone().requires_grad_()
    y = torch.vmap(lambda x, w: twt.linear(x, w, activation="gelu"), (None, 0))(A, ws)
    assert torch.allclose(y, found)
    assert torch.allclose(torch.autograd.grad(y.sum(), ws)[0], torch.autograd.grad(sum(
        F.gelu(A @ w.t()).sum() for w in ws), ws)[0])
    found = torch.vmap(torch.vmap(twt.mm, (None, 0)), (0, None))(AS, BS)
    assert torch.allclose(found, AS[:, None] @ BS)
