"""What a product asks for on a target, without compiling or running anything.

A *compiled* product's line is the plan of `tilewright.compile`, the emitters that are asked for, and digests of the
requests and of what the emitters record. A *called* product's line is that of a whole call, with operands in memory:
the plans that were chosen, all requests, and a digest of the steps: the words of each CPU job but for addresses, and
each launch on the fake driver with its grid and numbers.

Every call is made in a forked child of a process that has called nothing yet, so that nothing is remembered of other
lines. CPU targets are chips by name; the host's cores, caches, instructions and variables do not count.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

import tilewright as tw
from tests.doubles import fake_arrays, fake_device, fake_hip
from tests.helpers import gpus
from tests.snapshot.arrays import Arrays
from tilewright import targets
from tilewright.api import builtin
from tilewright.compiler import artefact, lld, manifest
from tilewright.compiler.loader import Loaded
from tilewright.ir import digest
from tilewright.plans.measured import choice
from tilewright.runtime.cpu import amx
from tilewright.runtime.cpu.host import Host
from tilewright.runtime.gpu import engine
from tilewright.targets import cpu

CPUS = {"zen3": 1, "zen4": 8, "sapphirerapids": 1}     # and the cores that they are said to have
TARGETS = (*CPUS, "sm_80", "sm_90a", "gfx950")


# Tools, and what needs packages that are not always installed: no line is of theirs.
LEFT_OUT = "lab", "torch", "jax", "dask", "mpi", "numpy", "checkpoints", "__main__"


def short(*texts: str, digits: int = 6) -> str:
    """A few digits that differ where the texts do."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:digits]


def warm() -> None:
    """Import every module but LEFT_OUT, so that no line depends on which one came first."""
    gc.disable()
    root = Path(tw.__file__).parent
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        if not name.startswith(tuple(f"tilewright.{x}" for x in LEFT_OUT)):
            import_module(name)
    gc.freeze()


def in_child(work: Callable[[], Any]) -> Any:
    """What work() returns in a forked child, where everything that it remembers is lost."""
    return begun(work)()


def begun(work: Callable[[], Any]) -> Callable[[], Any]:
    """The same, with what waits for it."""
    read, write = os.pipe()
    if not (child := os.fork()):
        status = 1
        try:
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(work(), pipe)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)

    def result() -> Any:
        with os.fdopen(read, "rb") as pipe:
            content = pipe.read()
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"the child ended with status {status}")
        return pickle.loads(content)
    return result


# ---- targets


@cache
def target(name: str) -> Any:
    """A CPU's is a chip that lacks nothing, wherever this runs."""
    found = targets.target(name)
    return replace(found, missing=(), cores=CPUS[name]) if name in CPUS else found


def on_target(name: str, patch: pytest.MonkeyPatch) -> Arrays:
    """Make this the machine's processor, or the only GPU of its maker."""
    if name in CPUS:
        chip = target(name)
        patch.setattr(cpu, "find", lambda asked, find=cpu.find: chip if asked == name else find(asked))
        patch.setattr(amx, "refusal", lambda: "")
        patch.setenv("TILEWRIGHT_TARGET", name)
        targets.detect.cache_clear()
        assert targets.detect() is chip
        return Arrays()
    patch.setattr(lld, "find", lambda: "")
    patch.setattr(fake_hip.code_object, "read", lambda image: SimpleNamespace(linked=True, **json.loads(image[4:])))
    return Arrays(gpus.machine(patch, name).array)


# ---- code


def spelled(x: Any, otherwise: Any = digest._spelling) -> Any:
    """A function of an operation's table by its name and constants: neither by its line nor by CPython's code."""
    if not isinstance(x, FunctionType):
        yield from otherwise(x)
        return
    yield x.__qualname__
    consts = [c for c in x.__code__.co_consts if isinstance(c, str) and c != x.__doc__]
    yield from spelled([*consts, *(cell.cell_contents for cell in x.__closure__ or ()), *(x.__defaults__ or ())])


def recorded_digests(functions: Any) -> list[str]:
    """Digests by that spelling, which is the snapshot's alone."""
    before, digest._spelling = digest._spelling, spelled
    try:
        return [digest.digest(function) for function in functions]
    finally:
        digest._spelling = before


def recorded(emit: str, target: Any, args: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
    """The functions of a request."""
    module, _, name = emit.partition(":")
    first = (target,) if isinstance(target, cpu.CpuTarget) else ()
    found = getattr(import_module(module), name)(*first, *args, **options)
    return list(found) if isinstance(found, (list, tuple)) else [found]


DIGESTS: dict[tuple[str, str], str] = {}    # of what is recorded for a request of a target


def request(emit: str, target: Any, args: tuple[Any, ...], options: dict[str, Any]) -> str:
    return f"{emit}{args}{sorted(options.items())} {target.code_key}"


def code(emit: str, target: Any, args: tuple[Any, ...], options: dict[str, Any], functions: Any = None) -> str:
    """A digest of what is recorded, or was before, once for equal requests of equal targets."""
    key = request(emit, target, args, options), f"{target}"
    if key not in DIGESTS:
        DIGESTS[key] = short(*recorded_digests(functions or recorded(emit, target, args, options)), digits=8)
    return DIGESTS[key]


def described(requests: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]) -> str:
    """The emitters, and digests of requests and code. The builtin's entry and the pool are those of every product."""
    wanted = [x for x in requests if not x[0].endswith(("entry:emit_entry", "pool:emit_pool"))]
    names = dict.fromkeys(emit.partition(":")[2].removeprefix("emit_") for emit, *_ in wanted)
    return f"{' '.join(names)} | {short(*(request(*x) for x in wanted))} {short(*(code(*x) for x in wanted))}"


# ---- compiled products


def compiled(problem: Callable[[], tw.Gemm], name: str) -> str:
    """The line of `tilewright.compile`, or the first words of the refusal."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(amx, "refusal", lambda: "")
            kernel = tw.compile(problem(), target(name))
        if kernel.empty:
            return "empty"
        return f"{kernel.plan} | {described([tuple(x) for x in kernel.asked])}"
    except (ValueError, TypeError, NotImplementedError) as error:
        return refused(error)


def refused(error: Exception) -> str:
    return f"refused: {' '.join(str(error).split())[:48]}"


# ---- called products


class Calls:
    """Takes the place of the way from an emitter to code; keeps what was asked for and what ran."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.requests: list[Any] = []
        self.functions: list[list[Any]] = []    # of a GPU's requests
        self.plans: list[str] = []
        self.steps: list[str] = []
        process = ctypes.CDLL(None)
        # Functions that ignore arguments: in place of the pool's one that says "done", of kernels one that says "well"
        yes, no = (ctypes.cast(process[x], ctypes.c_void_p).value for x in ("getpid", "sched_yield"))
        self.pool = Loaded(lambda name: yes, ["pool"], None)
        self.kernel = Loaded(lambda name: no, ["kernel"], None)
        self.known: dict[Any, Any] = {}
        patch.setattr(artefact, "_cached", self.cached)
        patch.setattr(builtin, "entry", lambda: None)       # which is emitted code: calls come to the Python function
        patch.setattr(choice, "chosen", lambda *of, chosen=choice.chosen: self.chosen(chosen(*of)))
        patch.setattr(Host, "job", lambda host, fields, job=Host.job: self.job(fields) or job(host, fields))
        patch.setattr(fake_device.FakeDevice, "launched", lambda fake, *of: self.launched(*of))

    def cached(self, emit: Any, target: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        name = emit if isinstance(emit, str) else f"{emit.__module__}:{emit.__qualname__}"
        key = request(name, target, args, options)
        if key not in self.known:
            self.requests.append((name, target, args, options))
            if isinstance(target, cpu.CpuTarget):
                self.known[key] = self.pool if name.endswith(":emit_pool") else self.kernel
            else:
                profile = sys.getprofile()          # what is recorded would come from the cache
                sys.setprofile(None)
                self.functions.append(recorded(name, target, args, options))
                self.known[key] = self.image(key, self.functions[-1], target)
                sys.setprofile(profile)
        return self.known[key]

    def image(self, key: str, functions: list[Any], target: Any) -> artefact.Code:
        """What the fake driver reads of PTX text, or of a code object, with nothing in between."""
        rows = tuple(manifest.manifest(x, target) for x in functions)
        if isinstance(target, targets.AmdTarget):
            kernels = {x["symbol"]: {
                ".args": [{".offset": p["offset"], ".size": p["size"], ".value_kind": "by_value"}
                          for p in x["arguments"]],
                ".max_flat_workgroup_size": x["workgroup"], ".private_segment_fixed_size": 0, ".vgpr_count": 64,
                ".group_segment_fixed_size": x["shared"] - x["dynamic_shared"]} for x in rows}
            image = b"\x7fELF" + json.dumps({
                "arch": target.name, "kernels": kernels, "symbols": [f"{x}.kd" for x in kernels], "key": key}).encode()
        else:
            image = "".join([f"// {int(short(key), 16)}\n", *map(self.ptx, rows)]).encode()
        if len(functions) == 1:
            fake_device.EMITTERS[image] = lambda: functions[0]
        return artefact.Code(image, rows)

    @staticmethod
    def ptx(of: dict[str, Any]) -> str:
        parameters = ", ".join(f".param .align 64 .b8 p[{p['size']}]" if "tile" in p else f".param .b{8*p['size']} p"
                               for p in of["arguments"])
        static = of["shared"] - of["dynamic_shared"]
        return f".entry {of['symbol']}({parameters})\n" + f".shared .align 16 .b8 s[{static}];\n" * bool(static)

    def chosen(self, found: tuple[Any, str]) -> Any:
        self.plans.append(str(found[0]))
        return found

    def job(self, fields: Any) -> None:
        """Words that are addresses, or as large as those, do not count."""
        rows = (row.split()[0].split("-") for row in Path("/proc/self/maps").read_text().splitlines())
        mapped = [range(int(low, 16), int(high, 16)) for low, high in rows]
        self.steps.append(" ".join(
            "*" if abs(x) >> 40 or any(x in part for part in mapped) else str(x) for x in fields))

    def launched(self, function: Any, args: list[Any], grid: tuple[int, ...], stream: int) -> None:
        numbers = [str(x) for x, (_, value) in zip(args, function.params) if hasattr(value.type, "numpy")]
        self.steps.append(f"{function.name} {grid} {numbers}")


def prepared(name: str) -> tuple[Calls, Arrays]:
    """For this process, which is a child and has no other use."""
    patch = pytest.MonkeyPatch()
    arrays = on_target(name, patch)
    return Calls(patch), arrays


def finish() -> None:
    """All that streams of fake devices were given."""
    for fake in (getattr(fake_arrays.Tensor, "fake", None), getattr(engine.AMD.driver.library, "loaded", None)):
        for stream in list(getattr(fake, "queues", ())):
            fake.run(stream)


def called(call: Callable[[Arrays], Any], name: str) -> str:
    """The line of a call on a target."""
    def work() -> Any:
        calls, arrays = prepared(name)
        try:
            call(arrays)
            finish()
        except (ValueError, TypeError, NotImplementedError) as error:
            return refused(error)
        for of, functions in zip(calls.requests, calls.functions):
            code(*of, functions)
        return calls.plans, calls.requests, calls.steps, {} if name in CPUS else DIGESTS
    found = in_child(work)
    if isinstance(found, str):
        return found
    plans, requests, steps, digests = found
    DIGESTS.update(digests)     # of CPUs' functions, which many lines share, they are made here
    return f"{'; '.join(dict.fromkeys(plans)) or '-'} | {described(requests)} {short(*steps)}"
