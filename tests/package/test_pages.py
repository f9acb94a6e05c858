"""Documentation pages whose code is run, and whose output is what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tests import pages, reference
from tests.reference_examples import EXAMPLES
from tilewright import simulator
from tilewright.compiler import bundle
from tilewright.ir import Kernel, f32, i32, i64, ptr
from tilewright.kernels.elementwise import each
from tilewright.runtime.cuda import module
from tilewright.runtime.run import run

DOCS = Path(__file__).resolve().parents[2] / "docs"


def same(printed: str, written: str) -> None:
    assert printed == written


PAGES = [DOCS.parent / "README.md", DOCS.parent / "examples/README.md", *sorted(DOCS.rglob("*.md"))]


def name(page: Path) -> str:
    return str(page.relative_to(DOCS.parent))


@pytest.mark.parametrize("page", [page for page in PAGES if "```" in page.read_text() and page != reference.PAGE],
                         ids=name)
def test_a_page_prints_what_it_says(page, monkeypatch):
    """Each block runs, or is refused."""
    monkeypatch.setattr(bundle, "used", [])
    if page.name == "tour.md":      # it would measure for a minute
        monkeypatch.setattr(tilewright, "tune", lambda *problem: None, raising=False)
    pages.check(page, module.available(), same)


def test_the_reference_is_what_the_docstrings_say():
    """And what its examples print, which run while it is made."""
    assert reference.PAGE.read_text() == reference.text(), "python -m tests.reference writes it anew"
    shown = {name for names in reference.PARTS.values() for name in names}
    assert shown == {name for name in tilewright.__all__ if not name.startswith("_")} == {*EXAMPLES}


LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)")


def headings(page: Path) -> set[str]:
    """The anchors that a Markdown page has."""
    lines = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE).splitlines()
    titles = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return {"#" + re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for path, anchor in LINK.findall(re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}"
        if anchor and target.suffix == ".md":
            assert anchor in headings(target), f"{page.name} links to {path}{anchor}"


def test_the_index_has_every_page():
    index = (DOCS / "README.md").read_text()
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert [page for page in pages if f"({page}" not in index and page not in ("README.md", "index.md")] == []


def test_every_environment_variable_is_in_the_table():
    sources = "".join(path.read_text() for path in Path(tilewright.__file__).parent.rglob("*.py"))
    names = set(re.findall(r"\bTILEWRIGHT_[A-Z_]+\b", sources))
    table = set(re.findall(r"^\| `(\w+)`", (DOCS / "install.md").read_text(), re.MULTILINE))
    assert names - table == set()
    assert {name for name in table if name.startswith("TILEWRIGHT")} - names == set()


@pytest.mark.parametrize(
    "text",
    ["```python\nprint(1)\n```\n\n```text\n2\n```\n", "```console run\n$ tilewright formats u2 0b11\n= 2\n```\n"],
)
def test_a_wrong_output_is_found(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError):
        pages.check(page, False, same)
    pages.rewrite(page)
    pages.check(page, False, same)


@pytest.mark.parametrize("text", [
    "```sh\ntilewright plan 8 8\n```\n", "```sh\ntilewright bench --not-an-option\n```\n",
    "```console\n$ tilewright plan 8 8 8 --target none\n```\n", "```python excerpt tests/pages.py\nx = y\n```\n",
    "```asm excerpt naive\n\tvmulps %ymm0, %ymm0, %ymm0\n```\n", "```sh\npython -m tests.nothing\n```\n",
    "```sh\npip install -e '.[nothing]'\n```\n", "```c++\nint x;\n```\n", "code:\n\n    x = 1\n",
    "```python cuda\nx = = 1\n```\n"])
def test_a_block_that_cannot_run_is_found(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises((SyntaxError, AssertionError)):
        pages.check(page, False, same)


def test_blocks_that_need_what_is_not_here_are_left_out(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n1\n```\n\n```python torch\nimport torch\n```\n\n"
                    "```python cuda\n1 / 0\n```\n")
    monkeypatch.setattr(pages, "find_spec", lambda name: None)
    assert [printed for _, _, printed in pages.outputs(page, cuda=False)] == ["1\n"]


def emit_negate(threads=None):
    k = Kernel("negate", threads=threads, n=i64, x=ptr(f32))
    n, x = k.args
    with each(k, n) as i:
        x[i] = 0.0 - x[i]
    return k.function


@pytest.mark.parametrize("n", [0, 1, 31, 64, 100])
def test_each_element_once(n):
    """On the CPU and, with CTAs that have threads too many, in the simulator."""
    x = np.arange(n, dtype=np.float32)
    run(emit_negate(), n, x)
    np.testing.assert_array_equal(x, -np.arange(n))
    simulator.run(emit_negate(64), n, x, grid=(3,))
    np.testing.assert_array_equal(x, np.arange(n))


def test_a_recorded_function_can_return():
    k = Kernel("twice", result=i32, x=i32)
    k.ret(k.args[0] * 2)
    assert run(k.function, 21) == 42


def test_arguments_that_do_not_fit():
    with pytest.raises(TypeError, match=r"negate takes 2 arguments \(n, x\), not 1"):
        run(emit_negate(), 1)
    with pytest.raises(TypeError, match=r"x points to f32: it must be an array of float32, not of float64"):
        run(emit_negate(), 1, np.zeros(1))
    with pytest.raises(TypeError, match="x must be an array in a GPU's memory, not ndarray of float32"):
        run(emit_negate(64), 1, np.zeros(1, np.float32))


def test_on_a_device():
    if not module.available():
        pytest.skip(module.why_not())
    torch = pytest.importorskip("torch")
    x = torch.arange(100, dtype=torch.float32, device="cuda")
    run(emit_negate(64), 100, x, grid=(2,))
    np.testing.assert_array_equal(x.cpu().numpy(), -np.arange(100))
