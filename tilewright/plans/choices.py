"""Fields of a plan that hold one of a few words, as their types say: its algorithm, how it copies."""
from __future__ import annotations

from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints


def unknown(plan: Any) -> list[str]:
    """A sentence for each field that holds another word; with one of these nothing else about the plan is known."""
    return [f"{name} must be {', '.join(words[:-1])} or {words[-1]}, not {getattr(plan, name)!r}."
            for name, words in _allowed(plan.__class__).items() if getattr(plan, name) not in words]


def checked(plan: Any) -> Any:
    """The plan, or a ValueError."""
    if found := unknown(plan):
        raise ValueError(" ".join(found))
    return plan


@cache
def _allowed(kind: Any) -> dict[str, tuple[str, ...]]:
    return {name: get_args(hint) for name, hint in get_type_hints(kind).items() if get_origin(hint) is Literal}
