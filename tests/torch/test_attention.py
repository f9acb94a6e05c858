"""twt.attention: against torch and numerical derivatives, compiled, behind the switch and in transformers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
import tilewright.torch as twt  # noqa: E402
from tilewright.torch import heads  # noqa: E402

F = torch.nn.functional


def tensors(*shapes: tuple[int, ...], dtype: Any = torch.float32) -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype, requires_grad=dtype.is_floating_point) for shape in shapes]


def alibi(score: Any, i: Any, j: Any, head: Any) -> Any:
    return score - (i - j) * 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_and_gradients_are_torchs(dtype: Any) -> None:
    given = tensors((2, 4, 50, 32), (2, 2, 70, 32), (2, 2, 70, 32), dtype=dtype)
    found = twt.scaled_dot_product_attention(*given, is_causal=True, enable_gqa=True)
    exact = [x.detach().double().requires_grad_() for x in given]
    want = F.scaled_dot_product_attention(*exact, is_causal=True, enable_gqa=True)
    g = torch.randn_like(want)
    tolerance = 1e-5 if dtype is torch.float32 else 0.04
    pairs = zip((found, *torch.autograd.grad(found, given, g.to(dtype))), (want, *torch.autograd.grad(want, exact, g)))
    for x, y in pairs:
        assert (x.double() - y).abs().max() <= tolerance * y.abs().max()


def test_derivatives_are_those_of_differences() -> None:
    q, k, v, sinks = tensors((2, 6, 4), (1, 7, 4), (1, 7, 4), (2,), dtype=torch.float64)
    hidden = torch.rand(6, 7) < 0.8

    def documents(score: Any, i: Any, j: Any, head: Any, seen: Any) -> Any:
        return tw.where(seen, score * tw.exp(-score * score * 0.1), -float("inf"))

    assert torch.autograd.gradcheck(lambda *x: twt.attention(
        *x[:3], window=(4, 1), sinks=x[3], softcap=2.0, bias=documents, operands={"seen": hidden}, return_lse=True),
        (q, k, v, sinks))


def test_the_operator_is_one_that_torch_can_check_and_compile() -> None:
    q, k, v = tensors((4, 20, 32), (2, 30, 32), (2, 30, 32))
    torch.library.opcheck(torch.ops.tilewright.attention.default, (
        q, k, v, [], None, None, None, "", -1, -1, None, 0.0, "", ""), test_utils=(
            "test_schema", "test_faketensor", "test_autograd_registration"))

    def block(q: Any, k: Any, v: Any) -> Any:
        return twt.attention(q, k, v, causal=True, bias=alibi)

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    found, want = compiled(q, k, v), block(q, k, v)
    torch.testing.assert_close(found, want)
    for x, y in zip(torch.autograd.grad(found.sum(), (q, k, v)), torch.autograd.grad(want.sum(), (q, k, v))):
        assert torch.equal(x, y)


def test_what_has_no_gradient_is_refused() -> None:
    q, k, v = tensors((2, 5, 8), (2, 5, 8), (2, 5, 8))
    with pytest.raises(ValueError, match="bias requires a gradient"):
        twt.attention(q, k, v, bias=torch.zeros(5, 5, requires_grad=True))
    with pytest.raises(ValueError, match="dropout_p must be 0"):
        twt.scaled_dot_product_attention(q, k, v, dropout_p=0.1)


def test_the_switch_takes_attention_without_dropout() -> None:
    q, k, v = tensors((1, 2, 33, 16), (1, 2, 33, 16), (1, 2, 33, 16))
    taken: list[str] = []

    def rule(name: str, given: Any) -> bool:
        taken.append(name)
        return True

    want = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    with twt.enable(rule):
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    assert taken == ["attention"]
    torch.testing.assert_close(found, want)


def test_the_switch_leaves_to_torch_what_no_kernel_does(monkeypatch: Any) -> None:
    """As f32 on a GPU."""
    def refuses(*args: Any, **how: Any) -> Any:
        raise NotImplementedError("attention on GPUs takes bf16 or f16")
    monkeypatch.setattr(heads, "scaled_dot_product_attention", refuses)
    q = torch.randn(1, 2, 8, 16)
    want = F.scaled_dot_product_attention(q, q, q)
    with twt.enable("always"):
        found = F.scaled_dot_product_attention(q, q, q)
    torch.testing.assert_close(found, want)


def test_a_model_of_transformers_computes_the_same() -> None:
    transformers = pytest.importorskip("transformers")
    twt.register_attention()
    config = transformers.LlamaConfig(vocab_size=50, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    words = torch.randint(0, 50, (2, 17))
    mask = torch.ones_like(words)
    mask[1, :5] = 0
    with torch.no_grad():
        want = [model(words).logits, model(words, attention_mask=mask).logits[:, 5:]]
        model.set_attn_implementation("tilewright")
        found = [model(words).logits, model(words, attention_mask=mask).logits[:, 5:]]
        texts = model.generate(words, max_new_tokens=5, do_sample=False, pad_token_id=0)
    for x, y in zip(found, want):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-4)
    assert texts.shape == (2, 22)


@pytest.mark.parametrize(("how", "error", "text"), [
    ({"window": -1}, ValueError, "window must be 0 or more keys"), ({"causal": 2}, ValueError, "causal must be False"),
    ({"window": (1, 2, 3)}, ValueError, "window must be a number or a pair"), ({"scale": "x"}, TypeError, "scale must"),
    ({"softcap": 0}, ValueError, "softcap must be a number above 0"), ({"bias": [1.0]}, TypeError, "bias must be a te"),
    ({"operands": {"x": 1.0}}, ValueError, "operands must be None unless bias is a function"),
    ({"q": np.ones((2, 8))}, TypeError, "q must be a tensor, not ndarray"),
])
def test_arguments_are_refused_in_a_sentence(how: dict[str, Any], error: type[Exception], text: str) -> None:
    x = torch.ones(2, 8)
    with pytest.raises(error, match=re.escape(text)):
        twt.attention(**{"q": x, "k": x, "v": x} | how)


def test_operands_may_be_numbers_and_arrays_of_numpy() -> None:
    x = torch.randn(3, 8)
    want = twt.attention(x, x, x, bias=lambda s, i, j, h: s * 2.0 + j)
    found = twt.attention(x, x, x, bias=lambda s, i, j, h, a, b: s * a + b, operands={"a": 2.0, "b": np.arange(3)})
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize(("shape", "dims", "beside"), [
    ((3, 7, 16), (1, None, 0), ""), ((2, 3, 4, 7, 16), (2, 0, 0), "sinks"),
    ((3, 4, 7, 16), (1, 0, 0), "bias"),
])
def test_vmap_is_a_loop(shape: tuple[int, ...], dims: tuple[int | None, ...], beside: str) -> None:
    """More sequences of one call, or a call for each part; also of gradients, which are mapped as well."""
    whole = [torch.randn(shape if dim is not None else (7, 16)).movedim(0, dim or 0) for dim in dims]
    more = {"": (), "sinks": (torch.randn(4),), "bias": (torch.randn(shape[0], 1, 1),)}[beside]

    def call(q: Any, k: Any, v: Any, *more: Any) -> Any:
        return twt.attention(q, k, v, causal=True, **({beside: more[0]} if more else {}))

    def slope(*given: Any) -> Any:
        return torch.func.grad(lambda *x: (call(*x) ** 2).sum(), 1)(*given)
    mapped = (*dims, *(0 if beside == "bias" else None for _ in more))
    for f in call, slope:
        parts = [f(*(x if d is None else x.select(d, i) for x, d in zip((*whole, *more), mapped)))
                 for i in range(shape[0])]
        torch.testing.assert_close(torch.vmap(f, mapped)(*whole, *more), torch.stack(parts), atol=1e-5, rtol=1e-4)
