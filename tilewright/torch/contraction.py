"""einsum as an operator of torch, tilewright::einsum of two tensors, with derivatives by the same operator.

Its labels are what both tensors, or one and the result, have. All else is torch's, on views of the operands: diagonals,
sums over labels that one operand alone has, axes of size 1 that are broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import tilewright
from tilewright.rules import paths, subscripts
from tilewright.rules.subscripts import LETTERS, Labels, Terms
from tilewright.torch.library import define, differentiate, library, total
from tilewright.torch.ops import empty, result_dtype


def einsum(*operands: Any, optimize: Any = True) -> Tensor:
    """The sum of products that subscripts name, as torch.einsum: einsum("ij,jk->ik", a, b), or einsum(a, [0, 1], b,
    [1, 2], [0, 2]). Each pair of operands is one product of tilewright.einsum, in C order.

    operands    tensors of one dtype that mm takes, any number and any strides; `...` and axes of size 1 are broadcast
    optimize    the order of products of three or more, as in tilewright.einsum; while torch.compile traces, all labels
                count as equally long, since sizes may be symbols

    Differentiable, in forward mode, too. TypeError and ValueError for other arguments.
    """
    given, labels, output = subscripts.read(operands)
    if len(given) == 1 and isinstance(given[0], (list, tuple)):
        given = given[0]
    terms = subscripts.resolve(labels, output, [tuple(x.shape) for x in given])
    sized = {label for label, size in terms.sizes.items() if size != 1}
    held = [_plain(x, term, sized) for x, term in zip(given, terms.inputs)]
    sizes = dict.fromkeys(terms.sizes, 64) if torch.compiler.is_compiling() else terms.sizes
    for i, j in [(0, 1)] if len(held) == 2 else _path(optimize, terms.inputs, terms.output, tuple(sizes.items())):
        pair = held[i], held[j]
        held = [x for at, x in enumerate(held) if at not in (i, j)]
        held.append(_product(*pair, {label for _, term in held for label in term} | set(terms.output)))
    x, term = _summed(*held[0], set(terms.output))
    kept = [label for label in terms.output if label in term]
    x = x.permute([term.index(label) for label in kept])
    for axis, label in enumerate(terms.output):
        x = x if label in term else x.unsqueeze(axis)               # of size 1
    return x


@torch.compiler.assume_constant_result
def _path(optimize: Any, inputs: tuple[Labels, ...], output: Labels, sizes: tuple[tuple[Any, int], ...]) -> paths.Path:
    """The order of pairs; torch.compile calls it as it traces."""
    return [] if len(inputs) < 2 else paths.chosen(optimize, Terms(inputs, output, dict(sizes)))


def _plain(x: Tensor, term: Labels, whole: set[Any]) -> tuple[Tensor, list[Any]]:
    """Without axes of size 1, and with the diagonal of axes of one label: another view."""
    labels = list(term)
    for axis in reversed(range(len(labels))):
        if labels.count(labels[axis]) > 1:
            first = labels.index(labels[axis])
            x = x.diagonal(0, first, axis)                          # its axis becomes the last
            label = labels.pop(axis)
            labels.pop(first)
            labels.append(label)
            return _plain(x, tuple(labels), whole)
    for axis in reversed(range(len(labels))):
        if labels[axis] not in whole or x.shape[axis] == 1:
            x = x.squeeze(axis)
            labels.pop(axis)
    return x, labels


def _summed(x: Tensor, labels: list[Any], wanted: set[Any]) -> tuple[Tensor, list[Any]]:
    """Over labels that nobody else has."""
    axes = [axis for axis, label in enumerate(labels) if label not in wanted]
    if axes:
        x = x.sum(axes, dtype=x.dtype)
    return x, [label for label in labels if label in wanted]


def _product(left: tuple[Tensor, list[Any]], right: tuple[Tensor, list[Any]], wanted: set[Any]
             ) -> tuple[Tensor, list[Any]]:
    (x, of_x), (y, of_y) = _summed(*left, wanted | set(right[1])), _summed(*right, wanted | set(left[1]))
    result = [label for label in dict.fromkeys([*of_x, *of_y]) if label in wanted]
    letters = dict(zip(dict.fromkeys([*of_x, *of_y]), LETTERS))
    text = ["".join(letters[label] for label in term) for term in (of_x, of_y, result)]
    return operator(f"{text[0]},{text[1]}->{text[2]}", x, y), result


def _terms(text: str) -> list[str]:
    return text.replace("->", ",").split(",")


def _shape(text: str, a: Tensor, b: Tensor) -> list[Any]:
    of_a, of_b, result = _terms(text)
    sizes = {**dict(zip(of_a, a.shape)), **dict(zip(of_b, b.shape))}
    return [sizes[label] for label in result]


def _kernel(text: str, a: Tensor, b: Tensor) -> Tensor:
    out = _fake(text, a, b)
    tilewright.einsum(text, a, b, out=out)
    return out


def _fake(text: str, a: Tensor, b: Tensor) -> Tensor:
    return empty(a, *_shape(text, a, b), dtype=result_dtype(a=a, b=b))


operator = define("einsum(str subscripts, Tensor a, Tensor b) -> Tensor", _kernel, _fake, autocast=True)


def _save(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.text, *factors = inputs
    ctx.save_for_backward(*factors)


def _backward(ctx: Any, g: Tensor) -> Any:
    a, b = ctx.saved_tensors
    of_a, of_b, result = _terms(ctx.text)
    _, wants_a, wants_b, *_ = ctx.needs_input_grad
    return (None, operator(f"{result},{of_b}->{of_a}", g, b.conj()) if wants_a else None,
            operator(f"{result},{of_a}->{of_b}", g, a.conj()) if wants_b else None)


def _tangent(inputs: Any, tangents: Any, output: Tensor) -> Any:
    (text, a, b), (_, of_a, of_b) = inputs, tangents
    return total(None if of_a is None else operator(text, of_a, b), None if of_b is None else operator(text, a, of_b))


def _mapped(info: Any, dims: Sequence[int | None], text: str, a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    """torch.vmap: a further label of what it maps over."""
    of_a, of_b, result = _terms(text)
    label = next(x for x in LETTERS if x not in text)
    of_a, of_b = (term if dim is None else term[:dim] + label + term[dim:] for term, dim in zip((of_a, of_b), dims[1:]))
    return operator(f"{of_a},{of_b}->{label}{result}", a, b), 0


differentiate(operator, _backward, _save, _tangent)
torch.library.register_vmap(operator._schema.name, _mapped, lib=library)
