"""Gradients of attention as GPUs compute them: by products with epilogues, beside torch's in float64; and which way
they are computed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from tilewright.torch import attention_gradients  # noqa: E402


@pytest.mark.parametrize(("causal", "window", "held"), [
    (False, None, 1 << 30), (True, (5, 3), 2000), ("upper left", None, 1 << 30)], ids=str)
def test_against_autograd(monkeypatch, causal, window, held):
    monkeypatch.setattr(attention_gradients, "HELD", held)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, n, size).double().requires_grad_()
               for heads, n, size in ((4, 20, 16), (2, 30, 16), (2, 30, 24)))
    sinks, g, g_lse = torch.randn(4).double().requires_grad_(), torch.randn(2, 4, 20, 24), torch.randn(2, 4, 20)
    scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2) * 16**-0.5
    i, j = torch.arange(20)[:, None] + (0 if causal == "upper left" else 10), torch.arange(30)[None]
    hidden = (j > i) if causal else torch.zeros(20, 30, dtype=torch.bool)
    hidden = hidden | (j < i - window[0]) if window else hidden
    scores = scores.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(torch.cat([scores, sinks[:, None, None].expand(2, 4, 20, 1)], -1), -1)
    out = torch.exp(scores - lse[..., None]) @ v.repeat_interleave(2, 1)
    ((out * g).sum() + (lse * g_lse).sum()).backward()
    found = attention_gradients.gradients(
        *(x.detach().float() for x in (q, k, v, out, lse)), g, g_lse, sinks.detach().float(), causal=causal,
        window=window)
    for mine, theirs in zip(found, (q, k, v, sinks), strict=True):
        torch.testing.assert_close(mine.double(), theirs.grad, rtol=1e-4, atol=1e-5)


def test_what_it_does_not_do():
    x = torch.zeros(1, 1, 2, 16)
    with pytest.raises(NotImplementedError, match="softcap"):
        attention_gradients.gradients(x, x, x, x, x[..., 0], x, None, softcap=2.0)


@pytest.mark.parametrize(("way", "refused", "expected"), [
    ("", "", "kernel"), ("", "kernel", "products"), ("kernel", "", "kernel"), ("products", "", "products"),
    ("kernel", "kernel", None), ("products", "products", None)])
def test_which_way_gradients_are_computed(monkeypatch, way, refused, expected):
    """The environment can ask for either; torch says whether sums have an order."""
    calls = []

    def kernel(*_, deterministic, **how):
        calls.append(("kernel", deterministic))
        if refused == "kernel":
            raise NotImplementedError("no kernel")
        return "q", "k", "v", None

    def products(*_, **how):
        calls.append(("products", None))
        if refused == "products":
            raise NotImplementedError("no products")
        return "q", "k", "v"
    monkeypatch.setenv(attention_gradients.WAY, way)
    monkeypatch.setattr(attention_gradients.api, "gradients", kernel)
    monkeypatch.setattr(attention_gradients, "_by_products", products)
    q = SimpleNamespace(is_cuda=True)
    if expected is None:
        with pytest.raises(NotImplementedError, match=f"no {refused}"):
            attention_gradients.gradients(q, *[None] * 6)
        return
    assert attention_gradients.gradients(q, *[None] * 6) == ("q", "k", "v", None)
    assert calls[-1][0] == expected
    assert ("kernel", True) not in calls
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    attention_gradients.gradients(q, *[None] * 6)
    assert (("kernel", True) in calls) == (way != "products")
