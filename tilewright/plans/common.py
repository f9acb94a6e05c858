"""What plans for all targets have in common: a text that is read back, what a plan costs, and the choice of a plan.

The choice is candidates → cost → the first legal one: `ranked` and `best` take the candidates of a planner and what it
predicts. A candidate is legal if `violations` has no sentence about it; what was refused is counted by reason.
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

P = TypeVar("P", bound="Plan")


class Plan:
    """The base of plans, which are frozen dataclasses with `algorithm` as their first field.

    A plan's text is its algorithm, the first sizes, and a word for each field that does not have its default:

        simt 128x256x8 warp=64x64 thread=8x16 stages=2 copy=registers tail

    Fields are numbers, flags (the field's name alone) or one word of several (a Literal).
    """
    FAMILY: ClassVar[str]                                   # of targets, for sentences: "a CPU"
    EXAMPLE: ClassVar[str]                                  # the text of a plan
    SIZES: ClassVar[tuple[str, ...]]                        # fields that are the text's second word: 128x256x8
    GROUPS: ClassVar[tuple[tuple[str, ...], ...]] = ()      # a word and its fields: warp=64x64
    ALWAYS: ClassVar[tuple[str, ...]] = ()                  # fields that are written whatever they are
    FORMERLY: ClassVar[tuple[tuple[str, str], ...]] = ()    # words that earlier versions wrote, and those of today

    algorithm: Any

    def __str__(self) -> str:
        """Short, and read back by `parse`."""
        sizes = "x".join([str(getattr(self, name)) for name in self.SIZES])
        return " ".join((self.algorithm, sizes, *self._words()))

    def _words(self) -> Iterator[str]:
        for word, names, default in _layout(self.__class__):
            values = tuple([getattr(self, name) for name in names])
            if values == default and word not in self.ALWAYS:
                continue
            yield word if values[0] is True else f"{word}={'x'.join(map(str, values))}"

    @classmethod
    def parse(cls: type[P], text: str) -> P:
        """The plan that `str(plan)` wrote. ValueError for anything else."""
        try:
            algorithm, sizes, *rest = text.split()
            values: dict[str, Any] = dict(zip(cls.SIZES, map(int, sizes.split("x")), strict=True))
            known = {word: names for word, names, _ in _layout(cls)}
            hints, formerly = _hints(cls), dict(cls.FORMERLY)
            for word in rest:
                name, equals, value = formerly.get(word, word).partition("=")
                names = known[name]
                if hints[names[0]] is bool:
                    if equals:
                        raise ValueError(word)
                    values[name] = True
                elif get_origin(hints[names[0]]) is Literal:
                    values[name] = value
                else:
                    values |= zip(names, map(int, value.split("x")), strict=True)
            plan = cls(algorithm, **values)     # type: ignore[call-arg]
            if wrong := plan.unknown_words():
                raise ValueError(" ".join(wrong))
            return plan
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"not a plan for {cls.FAMILY}: {text!r}; one looks like {cls.EXAMPLE!r}") from error

    def unknown_words(self) -> list[str]:
        """A sentence for each field that must be one of a few words and is not: nothing else is known then."""
        return [f"{name} must be {', '.join(words[:-1])} or {words[-1]}, not {getattr(self, name)!r}."
                for name, words in _allowed(self.__class__) if getattr(self, name) not in words]

    def below_one(self, *names: str) -> list[str]:
        """A sentence for each of these fields that is less than 1."""
        return [f"{name} is {value}, and must not be less than 1."
                for name in names if (value := getattr(self, name)) < 1]

    def above(self, **most: int) -> list[str]:
        """A sentence for each of these fields that exceeds its limit."""
        return [f"{name} is {value}, and must not be more than {limit}."
                for name, limit in most.items() if (value := getattr(self, name)) > limit]

    def varied(self: P, **fields: Any) -> P:
        """This plan with other values of fields, on which nothing depends that a plan computes once: `replace` for the
        many candidates of one tile."""
        plan = object.__new__(type(self))
        plan.__dict__.update(self.__dict__, **fields)
        return plan

    # ---- a target's own

    def violations(self, problem: Any, target: Any) -> list[str]:
        """Why this plan cannot run this problem (a Gemm, or its shape) on this target: sentences, none if it can."""
        raise NotImplementedError


def _once(found: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What a class has is found out once. (mypy takes classes for unhashable, so that it needs other types.)"""
    return cache(found)


@_once
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


@_once
def _allowed(cls: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((name, get_args(hint)) for name, hint in _hints(cls).items() if get_origin(hint) is Literal)


@_once
def _layout(cls: Any) -> tuple[tuple[str, tuple[str, ...], tuple[Any, ...]], ...]:
    """The words that follow a plan's sizes, in the order of fields: (word, fields, their defaults)."""
    word_of = {name: word for word, *names in cls.GROUPS for name in names}
    own: dict[str, list[Any]] = {}
    for f in fields(cls)[1 + len(cls.SIZES):]:
        own.setdefault(word_of.get(f.name, f.name), []).append(f)
    return tuple([(word, tuple([f.name for f in its]), tuple([f.default for f in its])) for word, its in own.items()])


# ---- what a plan costs

class Term(NamedTuple):
    """`size` bytes that cross a level of memory `times` times; `why` so often."""
    what: str
    size: int
    times: int
    why: str

    @property
    def bytes(self) -> int:
        return self.size * self.times


@dataclass(frozen=True)
class Cost:
    """What a model predicts of a plan."""
    seconds: float
    parts: tuple[tuple[str, float], ...]                    # seconds by cause; a model says whether they add up
    traffic: Mapping[str, tuple[Term, ...]] = field(default_factory=dict)       # by level of memory
    rounds: float | None = None         # GPUs: in which all compute units finish all tiles of C
    values: tuple[float, ...] = ()      # by which wgmma_residuals.py describes the plan
    vectors: int = 0                    # CPUs: multiply-add instructions, with the lanes that edges leave empty

    @property
    def bytes_by_level(self) -> dict[str, int]:
        return {level: total(terms) for level, terms in self.traffic.items()}

    @property
    def bound(self) -> str:
        """The part that takes the longest."""
        return max(self.parts, key=lambda part: part[1])[0]


def overlapped(alone: float, parts: Mapping[str, float], rounds: float | None = None) -> Cost:
    """The longest of several causes and a tenth of the others, which overlap with it; `alone` overlaps with nothing."""
    longest, *others = sorted(parts.values(), reverse=True)
    return Cost(alone + longest + 0.1*sum(others), tuple(parts.items()), rounds=rounds)


def total(terms: Iterable[Term]) -> int:
    sizes = [size * times for _, size, times, _ in terms]
    return sum(sizes)


# ---- the choice

class NoPlan(ValueError):
    """No candidate can run. `refused` has every sentence, and of how many candidates it is true."""

    def __init__(self, shape: Any, target: Any, candidates: int, refused: Counter[str]) -> None:
        super().__init__(f"no plan for {shape} on {target.name}: {_reasons(candidates, refused)}")
        self.refused = refused


def legal(shape: Any, target: Any, candidates: Iterable[P]) -> list[P]:
    """The candidates that can run. NoPlan, with the reasons, if there is none."""
    plans_allowed, refused, plans = [], Counter[str](), dict.fromkeys(candidates)
    for plan in plans:
        if sentences := plan.violations(shape, target):
            refused.update(set(sentences))
        else:
            plans_allowed.append(plan)
    if not plans_allowed:
        raise NoPlan(shape, target, len(plans), refused)
    return plans_allowed


def refusals(shape: Any, target: Any, candidates: Iterable[P]) -> dict[str, int]:
    """What is said of candidates that cannot run: a sentence for each kind, and how many it is said of."""
    refused = Counter[str]()
    for plan in dict.fromkeys(candidates):
        refused.update(plan.violations(shape, target)[:1])
    return {sentence: count for count, sentence in _kinds(refused)}


def ranked(shape: Any, target: Any, candidates: Iterable[P], seconds: Callable[[P], float]) -> list[P]:
    """All legal candidates, the one with the least predicted time first; of equal ones the first. NoPlan if none is."""
    return sorted(legal(shape, target, candidates), key=seconds)


def best(shape: Any, target: Any, candidates: Iterable[P], cost: Callable[[Any, P, Any], Cost]) -> P:
    """The legal candidate with the least predicted time, of equal ones the first. NoPlan if there is none. The rules
    are asked in the order of times, which a planner predicts of illegal candidates, too."""
    plans = [*candidates]
    times = [cost(shape, plan, target).seconds for plan in plans]
    for number in sorted(range(len(plans)), key=times.__getitem__):
        if not plans[number].violations(shape, target):
            return plans[number]
    return legal(shape, target, plans)[0]


SHOWN = 4               # kinds of reasons in a sentence


def _reasons(candidates: int, refused: Counter[str]) -> str:
    """The reasons that hold for every candidate; without one, all of them by count: sentences that differ in figures
    alone count as one kind, and the most frequent sentence of a kind stands for it."""
    if everywhere := [sentence for sentence, count in refused.items() if count == candidates]:
        return " ".join(everywhere)
    counted = _kinds(refused)
    listed = ", ".join(f"{count} x {sentence.rstrip('.')}" for count, sentence in counted[:SHOWN])
    more = f", and {len(counted) - SHOWN} further reasons" if len(counted) > SHOWN else ""
    return f"{candidates} candidates refused: {listed}{more}."


def _kinds(refused: Counter[str]) -> list[tuple[int, str]]:
    """(count, sentence), the most frequent first."""
    kinds: dict[str, Counter[str]] = {}
    for sentence, count in refused.most_common():
        kinds.setdefault(re.sub(r"\d+", "#", sentence), Counter())[sentence] = count
    return sorted(((sum(counts.values()), next(iter(counts))) for counts in kinds.values()), key=lambda x: -x[0])
