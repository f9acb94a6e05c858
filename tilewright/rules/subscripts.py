"""Subscripts of einsum: which axis of which operand has which label, as NumPy reads them.

A label is a letter, or in the other form of the call an integer; the axes that `...` stands for have the labels
"...-1", "...-2" and so on, from the last one. Labels of one name have one size, or 1, which is broadcast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

DOTS = "..."
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # in this order, which is that of implicit outputs
FORMS = "einsum('ij,jk->ik', a, b) or einsum(a, [0, 1], b, [1, 2], [0, 2])"

Label = Any  # a string or an integer
Labels = tuple[Label, ...]


class Terms(NamedTuple):
    """The labels of each operand's axes, those of the result, and the size of each label."""

    inputs: tuple[Labels, ...]
    output: Labels
    sizes: dict[Label, int]


def read(arguments: Sequence[Any]) -> tuple[Sequence[Any], list[list[Label]], list[Label] | None]:
    """The operands of einsum(*arguments), their labels and those of the output, None if they are implied; `...` is a
    label of its own here. TypeError and ValueError for what are no subscripts."""
    if arguments and isinstance(arguments[0], (str, bytes)):
        text = arguments[0]
        return _text(text if isinstance(text, str) else text.decode("latin-1"), arguments[1:])
    if len(arguments) < 2:
        raise ValueError(f"einsum needs subscripts and at least one operand, {FORMS}, not {len(arguments)} arguments")
    pairs, rest = len(arguments) // 2, arguments[len(arguments) // 2 * 2 :]
    labels = [_sublist(arguments[2 * i + 1], f"the subscripts of operand {i}") for i in range(pairs)]
    output = _sublist(rest[0], "the subscripts of the result") if rest else None
    return arguments[: 2 * pairs : 2], labels, output


def _text(subscripts: str, operands: Sequence[Any]) -> tuple[Sequence[Any], list[list[Label]], list[Label] | None]:
    written = subscripts.replace(" ", "")
    left, arrow, right = written.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ValueError(f"subscripts {subscripts!r} are those of {len(terms)} operands, and {len(operands)} are given")
    return operands, [_letters(term, subscripts) for term in terms], _letters(right, subscripts) if arrow else None


def _letters(term: str, subscripts: str) -> list[Label]:
    before, dots, after = term.partition(DOTS)
    for letter in before + after:
        if letter not in LETTERS:
            raise ValueError(f"subscripts may have letters, ',', '->' and one '...' in each term, and {subscripts!r} "
                             f"has {letter!r} in {term!r}")
    return [*before, *([DOTS] if dots else []), *after]


def _sublist(value: Any, name: str) -> list[Label]:
    value = value.tolist() if isinstance(value, np.ndarray) and value.ndim == 1 else value
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a list of integers, or of integers and one Ellipsis, not {value!r}; the forms "
                        f"are {FORMS}")
    labels: list[Label] = []
    for label in value:
        if label is not Ellipsis and (isinstance(label, bool) or not hasattr(label, "__index__")):
            raise TypeError(f"{name} must be integers, or one Ellipsis among them, not {label!r}")
        if label is not Ellipsis and label.__index__() < 0:
            raise ValueError(f"{name} must not be negative, and one is {label}")
        labels.append(DOTS if label is Ellipsis else label.__index__())
    if labels.count(DOTS) > 1:
        raise ValueError(f"{name} may have one Ellipsis, not {labels.count(DOTS)}")
    return labels


def resolve(labels: Sequence[Sequence[Label]], output: Sequence[Label] | None,
            shapes: Sequence[tuple[int, ...]]) -> Terms:
    """Labels for operands of these shapes. ValueError where they do not fit."""
    inputs = []
    sizes: dict[Label, int] = {}            # not dict[...](), which torch.compile does not trace
    for number, (term, shape) in enumerate(zip(labels, shapes)):
        resolved = _without_dots(term, shape, number)
        for axis, (label, size) in enumerate(zip(resolved, shape)):
            if shape[resolved.index(label)] != size:
                raise ValueError(f"operand {number} of shape {shape} has label {label!r} for axes of sizes "
                                 f"{shape[resolved.index(label)]} and {size}, which have no diagonal")
            known = sizes.setdefault(label, size)
            if 1 not in (known, size) and known != size:
                raise ValueError(f"label {label!r} has size {known} before, and operand {number} of shape {shape} has "
                                 f"{size} in axis {axis}")
            sizes[label] = size if known == 1 else known
        inputs.append(resolved)
    return Terms(tuple(inputs), _output(output, inputs), sizes)


def _without_dots(term: Sequence[Label], shape: tuple[int, ...], number: int) -> Labels:
    named = len(term) - (DOTS in term)
    if named > len(shape) or (DOTS not in term and named < len(shape)):
        raise ValueError(f"operand {number} has shape {shape}, and its subscripts are {len(term)}: {_shown(term)}")
    at = term.index(DOTS) if DOTS in term else named
    return (*term[:at], *_dots(len(shape) - named), *term[at + 1 :])


def _dots(count: int) -> Labels:
    return tuple(f"{DOTS}{-left}" for left in range(count, 0, -1))


def _output(output: Sequence[Label] | None, inputs: Sequence[Labels]) -> Labels:
    present = Counter(label for term in inputs for label in term)
    dots = _dots(sum(1 for label in present if str(label).startswith(DOTS)))
    named = {label: count for label, count in present.items() if label not in dots}
    if output is None:
        return (*dots, *sorted(label for label, count in named.items() if count == 1))
    if dots and DOTS not in output:
        raise ValueError(f"the result's subscripts {_shown(output)} must have '...', since that stands for "
                         f"{len(dots)} axes of the operands")
    for label in output:
        if label != DOTS and label not in named:
            raise ValueError(f"the result's subscripts {_shown(output)} have {label!r}, which no operand has")
        if output.count(label) > 1:
            raise ValueError(f"the result's subscripts {_shown(output)} have {label!r} {output.count(label)} times")
    at = output.index(DOTS) if DOTS in output else 0
    return (*output[:at], *dots, *output[at + 1 :]) if DOTS in output else tuple(output)


def _shown(term: Sequence[Label]) -> str:
    return repr("".join(term)) if all(isinstance(label, str) for label in term) else str(list(term))
