"""What every test stands on: an own cache directory, the same Hypothesis examples in every CI run."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import cache
from math import gcd
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import settings

# Set before tilewright is imported, and inherited by child processes, pytest-xdist's workers among them, so that a
# kernel is compiled once: no test may see the user's kernels or tuning results, nor leave any behind.
SHARED = "TESTS_CACHE_OF_TILEWRIGHT"
CACHE = os.environ.get(SHARED) or tempfile.mkdtemp(prefix="tilewright-tests-")
os.environ[SHARED] = os.environ["TILEWRIGHT_CACHE_DIR"] = CACHE
os.environ["TILEWRIGHT_TUNE_DB"] = "off"  # plans are the model's, on every machine; tests of the tuner say otherwise

settings.register_profile("tilewright", deadline=None, max_examples=50, print_blob=True, derandomize="CI" in os.environ)
settings.register_profile("thorough", settings.get_profile("tilewright"), max_examples=3000)
settings.load_profile("tilewright")  # pytest --hypothesis-profile=thorough looks for longer


@pytest.fixture(autouse=True, scope="session")
def idle_machine_without_a_terminal() -> Iterator[None]:
    """No test depends on what else runs: without counts of CPU time no measurement is taken for disturbed. Commands
    print as to a pipe: pytest-xdist sets COLUMNS for its workers, as if they had a terminal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.lab.measure.quiet.STAT", Path("/nowhere"))
        patch.delenv("COLUMNS", raising=False)
        yield


@pytest.fixture(autouse=True)
def a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on whether the checkout has changes, in which no result file is written."""
    monkeypatch.setattr("tilewright.lab.measure.machine.commit", lambda: "0123456789ab")
    monkeypatch.setattr("tilewright.lab.measure.machine.sources", lambda: "0" * 64)


def once(function: Callable[..., Any], by: Callable[[], object] = str) -> Callable[..., Any]:
    """The function of texts and records, which looks up what any process of the run has had from it for the same.
    `by`: what else decides; it may raise."""
    def looked_up(*given: Any, **options: Any) -> Any:
        key = repr((function.__name__, given, sorted(options.items()), str(by())))
        path = Path(CACHE) / f"{hashlib.sha256(key.encode()).hexdigest()}.once"
        if path.exists():
            return pickle.loads(path.read_bytes())
        result = function(*given, **options)
        written = path.with_suffix(f".{os.getpid()}")
        written.write_bytes(pickle.dumps(result))
        written.replace(path)
        return result
    return looked_up


@pytest.fixture(autouse=True, scope="session")
def compiled_once(pytestconfig: pytest.Config) -> Iterator[None]:
    """LLVM and ptxas are given the same text for the same target once in a run, however many tests ask. Of the objects
    that this process runs, LLVM optimises one in four, by a checksum of the texts, and with --all-ways all: without its
    passes code is compiled in a fifth of the time, and computes the same."""
    from tilewright.compiler import llvm, ptxas
    compiled = llvm.compiled

    def mostly_quick(source: str, target: Any, level: int, jit: bool, kind: str) -> Any:
        quick = jit and kind == "object" and not pytestconfig.getoption("--all-ways") and "amx" not in source
        return compiled(source, target, 0 if quick and crc32(source.encode()) % 4 else level, jit, kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llvm, "compiled", once(mostly_quick))
        patch.setattr(ptxas, "assemble", once(ptxas.assemble, lambda: ptxas.find()))
        yield


@pytest.fixture(autouse=True, scope="session")
def one_command_line() -> Iterator[None]:
    """Typer makes all commands anew whenever a test runs one, which takes longer than most of them."""
    import typer.testing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.testing._get_command))
        yield


gc.disable()            # while tests are collected, of which none is garbage


def pytest_collection_finish() -> None:
    """The tests themselves, ten thousand of them, are no garbage: the collector need not look at them again and again,
    nor so often at what is recorded and simulated. Tests of lifetimes ask for a collection. No test may call
    gc.unfreeze(): a collection would take a second from then on."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 10, 10)       # a kernel as it is recorded is no garbage, either


@pytest.fixture(autouse=True, scope="module")
def earlier_modules() -> Iterator[None]:
    """Kernels and records that a module of tests leaves are exempt from later garbage collections, if they are many."""
    yield
    if gc.get_count() > (20_000,):
        gc.collect()
        gc.freeze()


def _sample(cases: list[pytest.Function], share: int | None) -> list[pytest.Function]:
    """One in `share` cases; without one, so many that each value of each parameter is among them. They are spread over
    the grid of parameters, and the same in every run."""
    step = max(1, round(0.618 * len(cases)))
    while gcd(step, len(cases)) > 1:
        step += 1
    spread = [cases[i * step % len(cases)] for i in range(len(cases))]
    if share:
        return spread[:-(-len(cases) // share)]
    seen: set[tuple[str, str]] = set()
    taken = []
    for case in spread:
        values = {(name, repr(x)) for name, x in case.callspec.params.items()}
        if not values <= seen:
            seen |= values
            taken.append(case)
    return taken


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked as sampled take a part of their parameters' combinations, but for --all-ways and where they are
    asked for by their ids."""
    if config.getoption("--all-ways") or any("::" in x for x in config.args):
        return
    grids: dict[tuple[str, str], list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("sampled"):
            grids.setdefault((str(item.path), item.originalname), []).append(item)
    left: set[pytest.Item] = set()
    for cases in grids.values():
        left.update({*cases} - {*_sample(cases, *(cases[0].get_closest_marker("sampled").args or (None,)))})
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=[*left])


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """A test ends as skipped where it comes to an assembler, or a linker, that this machine does not have."""
    from tilewright.compiler import lld, ptxas

    try:
        return (yield)
    except (lld.Missing, ptxas.Missing) as missing:
        tool = ptxas if isinstance(missing, ptxas.Missing) else lld
        with suppress(tool.Missing):
            tool.find()
            raise
        pytest.skip(str(missing))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-ways", action="store_true", help="product cases on every device and by compiled "
                     "kernels; every combination of the parameters of sampled tests")
    parser.addoption("--update-golden", action="store_true", help="write the files of tests/golden anew")


def pytest_unconfigure(config: pytest.Config) -> None:
    # pytest collects garbage once more. Of a worker's whole heap that took longer than the 5 s after which xdist
    # interrupts a worker that has not ended.
    gc.freeze()
    if not hasattr(config, "workerinput"):  # the process that began removes what all have used
        shutil.rmtree(CACHE, ignore_errors=True)
