"""`tilewright.kernel`: an emitter whose sizes are found for a chip, and the call that uses what was found.

    @tw.kernel(L=(32, 64, 128), S=(8, 16, 32), V=(4, 8), grid=lambda L, m, n: (-(-n // L), -(-m // L)))
    def emit_product(L=128, S=8, V=8): ...

A *configuration* is a value for each UPPER parameter, written `L=64 S=16 V=8`. `tilewright.tune` finds the one to use
(tuner/kernels.py); a call takes it from the store, where it is kept for a kernel, target, chip and class of sizes.
"""
from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from itertools import product
from math import log2, prod
from numbers import Integral
from time import monotonic
from typing import Any

from tilewright import targets
from tilewright.forks import cached_property
from tilewright.ir.program import Function
from tilewright.runtime import run
from tilewright.targets import Target

Values = Mapping[str, Any]
MOST = 10_000                   # configurations of one kernel
MOST_CALLS = 1024               # kinds of calls that are remembered
FRESH_S = 0.25                  # for so long, unless this process stores something: others may
THREADS = 256                   # of a CTA, of an emitter that leaves them to the caller


class Refused(ValueError):
    """A configuration that cannot run, and the sentence that says why."""


OPTIONS = ("grid", "check", "shared", "tile", "arrays", "reference")


class Parametric:
    """What `tilewright.kernel` makes of an emitter: `emitter(*args)` runs it by the configuration that was found for
    such arguments, else by the emitter's defaults; `emitter.function(target, L=64, ...)` records it."""

    def __init__(self, emit: Callable[..., Any], given: Mapping[str, Any]) -> None:
        if not callable(emit):
            raise TypeError(f"tilewright.kernel decorates a function that records a kernel, not {emit!r}")
        update_wrapper(self, emit)
        self.emit, self.name = emit, getattr(emit, "__name__", "kernel")
        taken = inspect.signature(emit).parameters
        self.parameters: dict[str, tuple[Any, ...]] = {}
        self.options: dict[str, Callable[..., Any]] = {}
        self.tolerance = given.get("tolerance")
        for word, value in given.items():
            if word.isupper():
                self.parameters[word] = _values(self.name, word, value)
                if word not in taken:
                    raise TypeError(f"{self.name} has no parameter {word}; it has {', '.join(taken) or 'none'}")
            elif word in OPTIONS:
                if not callable(value):
                    raise TypeError(f"{self.name}: {word} must be a function of parameters and arguments, "
                                    f"not {value!r}")
                self.options[word] = value
            elif word != "tolerance":
                raise TypeError(f"tilewright.kernel has no option {word!r}; there are {', '.join(OPTIONS)}, tolerance, "
                                "and UPPER parameters")
        if not self.parameters:
            raise TypeError(f"{self.name}: tilewright.kernel needs a parameter that may vary, such as L=(32, 64, 128)")
        if prod(map(len, self.parameters.values())) > MOST:
            raise ValueError(f"{self.name} has {prod(map(len, self.parameters.values())):,} configurations, and at "
                             f"most {MOST:,} can be tried")
        self._own = [name for name in ("target", "threads", "warp") if name in taken]
        missing = [name for name, p in taken.items() if p.default is p.empty and name not in self.parameters
                   and name not in self._own and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if missing:
            raise TypeError(f"{self.name} needs {', '.join(missing)}, which is no UPPER parameter with values; give it "
                            "a default, or wrap the emitter")
        self._recorded: dict[Any, tuple[Function, str]] = {}
        self._chosen: dict[Any, dict[str, Any]] = {}
        self._calls: dict[Any, tuple[Function, Any]] = {}
        self._until = 0.0

    def __repr__(self) -> str:
        return f"<kernel {self.name} of {', '.join(f'{name}={values}' for name, values in self.parameters.items())}>"

    # ---- configurations

    @property
    def configurations(self) -> list[dict[str, Any]]:
        """Every one, the defaults first."""
        every = [dict(zip(self.parameters, values)) for values in product(*self.parameters.values())]
        return sorted(every, key=lambda each: each != self.defaults)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """By the emitter's own defaults, else the first value of each parameter."""
        taken = inspect.signature(self.emit).parameters
        return {name: taken[name].default if taken[name].default in values else values[0]
                for name, values in self.parameters.items()}

    def parse(self, text: str) -> dict[str, Any]:
        """The configuration that `spelled` wrote. ValueError for a text that is none of this kernel's."""
        words = dict(word.split("=", 1) for word in text.split() if "=" in word)
        if words.keys() != self.parameters.keys():
            raise ValueError(f"{text!r} is no configuration of {self.name}, whose parameters are "
                             f"{', '.join(self.parameters)}")
        return {name: _among(self.name, name, words[name], values) for name, values in self.parameters.items()}

    # ---- recording, and what a call must know

    def function(self, target: Target | str | None = None, **configuration: Any) -> Function:
        """The recorded kernel for a target (default: this machine's CPU). Refused, with the emitter's sentence, where
        it cannot be recorded."""
        return self._record(target, configuration)[0]

    def digest(self, target: Target | str | None = None, **configuration: Any) -> str:
        """The name of what `function` returns, as it was recorded: lowering adds to a function what it finds out."""
        return self._record(target, configuration)[1]

    def _record(self, target: Target | str | None, configuration: Values) -> tuple[Function, str]:
        from tilewright.ir.digest import digest
        chip, chosen = targets.coerce(target), {**self.defaults, **configuration}
        key = (chip.name, spelled(chosen))
        if key not in self._recorded:
            own = of_chip(chip)
            try:
                emitted = self.emit(**{name: own[name] for name in self._own if name in own}, **chosen)
            except (ValueError, NotImplementedError) as error:
                raise Refused(str(error)) from error
            if not isinstance(emitted, Function):
                raise TypeError(f"{self.name} must return the recorded kernel, k.function, not {emitted!r}")
            self._recorded[key] = emitted, digest(emitted)
        return self._recorded[key]

    def ask(self, option: str, **names: Any) -> Any:
        """What an option says of these names; None where there is no such option."""
        function = self.options.get(option)
        if function is None:
            return None
        wanted = inspect.signature(function).parameters
        if any(p.kind is p.VAR_KEYWORD for p in wanted.values()):
            return function(**names)
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise ValueError(f"{self.name}: {option} asks for {', '.join(unknown)}, and there are {', '.join(names)}")
        return function(**{name: names[name] for name in wanted})

    def named(self, function: Function, args: Sequence[Any]) -> dict[str, Any]:
        """Arguments by name. TypeError where there are too few or too many."""
        from tilewright.ir import arguments
        arguments.count(function, args)
        return {name: x for (name, _), x in zip(function.params, args)}

    def grid(self, target: Target, configuration: Values, named: Values) -> Any:
        return self.ask("grid", target=target, **configuration, **named)

    def wrong(self, target: Target, configuration: Values, named: Values) -> list[str]:
        """What `check` and `shared` say against a configuration."""
        names = {"target": target, **configuration, **named}
        said = self.ask("check", **names)
        sentences = [said] if isinstance(said, str) else list(said) if said not in (None, True, False) else []
        if said is False:
            sentences.append("check refuses it")
        needed, most = self.ask("shared", **names), getattr(target, "smem_cta", getattr(target, "lds", None))
        if needed is not None and most is not None and needed > most:
            sentences.append(f"{needed} bytes of shared memory, and {target.name} gives a CTA {most}")
        return sentences

    def sizes(self, configuration: Values, named: Values, target: Target) -> dict[str, int]:
        """Extents of one tile, by the names of the arguments that are sizes. ValueError for what is no argument."""
        tile_sizes = self.ask("tile", target=target, **configuration, **named) or {}
        for name, extent in tile_sizes.items():
            if name not in named or not isinstance(named[name], Integral):
                raise ValueError(f"{self.name}: tile names {name}, which is no whole number among the arguments "
                                 f"{', '.join(named)}")
            if not isinstance(extent, Integral) or extent < 1:
                raise ValueError(f"{self.name}: the tile of {name} must be a whole number from 1 on, not {extent!r}")
        return {name: int(extent) for name, extent in tile_sizes.items()}

    # ---- what was found

    def of_call(self, named: Values, target: Target) -> dict[str, int]:
        """The sizes of a call by which configurations are chosen: those that have tiles, else all whole numbers."""
        names = self.sizes(self.defaults, named, target) or [x for x in named if isinstance(named[x], Integral)]
        return {name: int(named[name]) for name in names}

    def problem_class(self, named: Values, target: Target) -> str:
        """The sizes of a call to the nearest power of two: all in one class share a configuration."""
        sizes = self.of_call(named, target)
        return " ".join(f"{name}={1 << round(log2(max(size, 1)))}" for name, size in sizes.items()) or "any"

    def source(self, target: Target) -> str:
        """A digest of what the emitter records by its defaults, and of the space: what was measured holds for these."""
        try:
            text = self.digest(target)
        except Refused as why:
            text = str(why)
        return hashlib.sha256(f"{self.parameters!r}\n{text}".encode()).hexdigest()[:16]

    def configuration(self, target: Target | str | None, *args: Any) -> dict[str, Any]:
        """What a call on this target uses: the configuration that was measured to be the fastest for such sizes, or
        that for the nearest sizes that were measured (plans/measured/kernels.py), else the emitter's defaults."""
        return self._configuration(targets.coerce(target), self._names(targets.coerce(target), args))

    def _configuration(self, chip: Any, named: Values) -> dict[str, Any]:
        from tilewright.plans.measured import choice, kernels, store
        file, sizes = store.path(), self.of_call(named, chip)
        key = (chip.name, choice.chip(chip), tuple(sizes.values()), file and store.stamp(file))

        def tiles(text: str) -> dict[str, int] | None:
            try:
                configuration = self.parse(text)
                return None if self.wrong(chip, configuration, named) else self.sizes(configuration, named, chip)
            except ValueError:                      # of another version of the kernel
                return None
        if key not in self._chosen:
            if len(self._chosen) >= MOST_CALLS:
                self._chosen.clear()
            own = self.name, self.source(chip), chip
            text = None
            if key[3]:
                text = kernels.best(*own, self.problem_class(named, chip)) or kernels.nearby(*own, sizes, tiles)
            self._chosen[key] = self.parse(text) if text else self.defaults
        chosen = self._chosen[key]
        return self.defaults if chosen != self.defaults and self.wrong(chip, chosen, named) else chosen

    def _names(self, chip: Any, args: Sequence[Any]) -> dict[str, Any]:
        return self.named(self.recorded(chip), args)

    def recorded(self, chip: Any) -> Function:
        """The first configuration that can be recorded for a chip: all have the same arguments. Refused if none can."""
        for configuration in self.configurations:
            try:
                return self.function(chip, **configuration)
            except Refused as error:
                why = error
        raise Refused(f"no configuration of {self.name} can be recorded for {chip.name}: {why}")

    def __call__(self, *args: Any) -> Any:
        """Run it: NumPy's arrays on this CPU, arrays in a GPU's memory there, as runtime.run does."""
        key, now = tuple(map(_kind, args)), monotonic()
        if now > self._until or len(self._calls) >= MOST_CALLS:
            self.forget()
            self._until = now + FRESH_S
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = self._call(args)
        function, grid = call
        return run.run(function, *args, grid=grid)

    def forget(self) -> None:
        """Look up anew what was found: something has been stored."""
        self._calls.clear()

    def _call(self, args: Sequence[Any]) -> tuple[Function, Any]:
        """The function and the grid for calls with such arguments."""
        chip = device_of(args)
        named = self._names(chip, args)
        chosen = self._configuration(chip, named)
        function = self.function(chip, **chosen)
        return function, self.grid(chip, chosen, named) if function.threads is not None or function.programs else None


def of_chip(chip: Any, threads: int = THREADS) -> dict[str, Any]:
    """What an emitter gets for the parameters of these names: on a CPU `warp` has the emitter's default."""
    if isinstance(chip, targets.CpuTarget):
        return {"target": chip, "threads": None}
    return {"target": chip, "threads": threads, "warp": chip.warp}


def _kind(x: Any) -> Any:
    """What a configuration and a grid may depend on: of a number its value, of an array shape, format and device."""
    if isinstance(x, (int, float)):
        return x
    return type(x), getattr(x, "shape", None), getattr(x, "dtype", None), str(getattr(x, "device", ""))


def device_of(args: Sequence[Any]) -> Any:
    """The record of the chip in whose memory these arguments are."""
    device = run.device_of(args)
    return targets.detect() if device is None else device.target


def spelled(configuration: Values) -> str:
    """`L=64 S=16 V=8`."""
    return " ".join(f"{name}={value}" for name, value in configuration.items())


def _values(kernel: str, name: str, values: Any) -> tuple[Any, ...]:
    listed = tuple(values) if isinstance(values, (tuple, list, range)) else ()
    if not listed or any(" " in str(x) for x in listed) or len({str(x) for x in listed}) < len(listed):
        raise ValueError(f"{kernel}: {name} must have a tuple of different values without spaces, such as (32, 64, "
                         f"128), not {values!r}")
    return listed


def _among(kernel: str, name: str, text: str, values: tuple[Any, ...]) -> Any:
    for value in values:
        if str(value) == text:
            return value
    raise ValueError(f"{kernel}: {name}={text} is none of {', '.join(map(str, values))}")
