"""The page in a headless Chromium: it is drawn in every size and theme, and everything on it can be used."""

from __future__ import annotations

import pytest

import tilewright as tw
from tests.helpers import browser
from tests.lab.show.test_record import TRANSPOSE
from tilewright.lab.show import build, sliders


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    browser.needed()
    folder = tmp_path_factory.mktemp("show")
    (folder / "mine.py").write_text(TRANSPOSE)
    chip, silent = tw.target("sm_90a"), lambda text: None
    records = build.of_step("shared", chip, (64, 64, 16), True, silent)
    records += build.of_step("tma", chip, (128, 128, 64), False, silent)
    records += build.of_step("micro", tw.target("x86-avx2"), None, False, silent)
    records += build.of_step("f16", tw.target("gfx942"), None, False, silent)
    records.append(build.of_file(f"{folder}/mine.py:emit_transpose", ["32x32", "32x32"], chip, None, True, silent))
    scaled = tw.Gemm(16, 16, 64, "mxfp4", "mxfp4", "f32", layout="nt")
    records.append(build.of_problem(scaled, chip, None, False, silent))
    path = folder / "show.html"
    with pytest.MonkeyPatch.context() as patch:             # few kernels to simulate
        patch.setattr(sliders, "PARAMETERS", {"padded": {"PAD": (1, 4)}, "ring": {"SWIZZLE": (1, 8)}})
        text = build.document(records, [chip], ("f32", "f32"), "a test", silent)
    assert len(text) < 1e6
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def opened(page):
    with browser.browser() as chromium, browser.page(chromium, page) as found:
        found.wait_for_selector("body[data-ready]")
        yield found


@pytest.fixture
def fresh(opened):
    """The page as it is when it is opened, a step on screen; nothing may have gone wrong on it afterwards."""
    opened.set_viewport_size({"width": browser.DESKTOP[0], "height": browser.DESKTOP[1]})
    opened.evaluate("scrollTo(0, 0); state.tab = 'Python'; state.pick = 'follow'; use('shared'); state.i = 12; "
                    "state.j = 41; go(40)")
    settle(opened)
    yield opened
    assert opened.errors == []


def settle(opened):
    """Until what was asked for is drawn."""
    opened.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def state(opened, what):
    return opened.evaluate(f"state.{what}")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [browser.DESKTOP, browser.PHONE], ids=["desktop", "phone"])
def test_it_is_drawn(fresh, size, dark):
    fresh.set_viewport_size({"width": size[0], "height": size[1]})
    fresh.emulate_media(color_scheme="dark" if dark else "light")
    for record in fresh.evaluate("D.records.map(r => r.id)"):
        fresh.evaluate(f"use({record!r})")
        settle(fresh)
        assert browser.overflow(fresh) == 0, record
    fresh.evaluate("use('shared')")
    settle(fresh)
    assert browser.colours(fresh.screenshot()) > 100
    back = fresh.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, back[4:-1].split(","))) < 200) == dark
    fresh.emulate_media(color_scheme="light")


def test_stepping_and_keys(fresh):
    said = fresh.inner_text("#now .say")
    fresh.click("#next")
    settle(fresh)
    assert state(fresh, "step") == 41
    assert fresh.inner_text("#now .say") != said
    fresh.click("#prev")
    fresh.evaluate("document.activeElement.blur()")
    for key, change in (("ArrowRight", 1), ("ArrowLeft", -1)):
        before = state(fresh, "step")
        fresh.keyboard.press(key)
        assert state(fresh, "step") == before + change
    fresh.keyboard.press("ArrowDown")
    settle(fresh)
    assert fresh.evaluate("step().loops.p0") == 8
    before = fresh.evaluate("K.depth(step(), K.me(state.i, state.j))")
    fresh.keyboard.press("Shift+ArrowRight")
    assert fresh.evaluate("K.depth(step(), K.me(state.i, state.j))") != before
    fresh.keyboard.press("End")
    settle(fresh)
    assert "16 of 16 products" in fresh.inner_text("#caption")
    assert fresh.evaluate("K.sum(state.i, state.j, K.done(state.i, state.j, state.step)) "
                          "=== K.c[state.i * K.n + state.j]")
    fresh.keyboard.press("Home")
    assert state(fresh, "step") == 0
    fresh.keyboard.press("Space")
    fresh.wait_for_function("state.step > 0")
    fresh.keyboard.press("Space")
    assert state(fresh, "play") is None
    box = fresh.locator("#time").bounding_box()
    fresh.mouse.click(box["x"] + box["width"] * 0.75, box["y"] + 20)
    assert abs(state(fresh, "step") / fresh.evaluate("K.steps.length") - 0.75) < 0.05
    assert fresh.get_attribute("#time", "aria-valuenow") == str(state(fresh, "step"))


def test_pointing_at_an_element(fresh):
    box, levels = fresh.locator("#levels").bounding_box(), fresh.evaluate("({...G.g1.C, u: G.g1.u})")
    fresh.mouse.move(box["x"] + levels["x"] + 3.5 * levels["u"], box["y"] + levels["y"] + 40.5 * levels["u"])
    settle(fresh)
    assert (state(fresh, "i"), state(fresh, "j")) == (40, 3)
    assert "C[40,3]" in fresh.inner_text("#caption")
    where = fresh.inner_text("#where")
    assert "bank" in where
    assert "sector" in where
    assert fresh.evaluate("K.me(40, 3).cta") == 2
    lanes = fresh.evaluate("G.lanes")
    fresh.locator("#banks").hover(position={"x": 100, "y": lanes["y"] + 9.5 * lanes["h"]})
    assert fresh.evaluate("K.me(state.i, state.j).lane") == 9
    fresh.click("#picks [data-pick='load a_smem']")
    settle(fresh)
    assert "4 passes" in fresh.inner_text("#verdict")
    before = state(fresh, "i")
    fresh.keyboard.press("s")
    assert state(fresh, "i") == before + 1


def test_break_it(fresh):
    fresh.click("#break")
    settle(fresh)
    assert fresh.inner_text("#now .say").startswith("race at gpu04_shared.py:")
    assert "nothing orders the two" in fresh.inner_text("#now .say")
    assert fresh.locator("#source .row.cut").count() == 1
    assert fresh.locator("#source .row.race").count() == 2
    assert fresh.inner_text("#break") == "Put it back"
    fresh.click("#faults [data-fault='1']")
    settle(fresh)
    assert "load of a_smem" in fresh.inner_text("#now .say")
    fresh.evaluate("document.activeElement.blur()")
    fresh.keyboard.press("b")
    settle(fresh)
    assert fresh.locator("#source .row.cut").count() == 0


def test_several_launches_and_scales(fresh):
    """An element of C lights its row and column, their scales, and where launches before have put them."""
    fresh.evaluate("use('sm_90a'); state.i = 5; state.j = 9; go(K.products[0].number)")
    settle(fresh)
    assert "3 launches, one after the other" in fresh.inner_text("#lead")
    where = fresh.inner_text("#where")
    for text in ("low 4 bits", "workspace +", "the scale of k 0 to 31 (scale_a + 10 bytes", "scale_b + 18 bytes"):
        assert text in where
    fresh.evaluate("go(K.steps.findIndex(s => s.kind.array === 'scale_b'))")
    settle(fresh)
    assert fresh.inner_text("#now .say").startswith("Launch 2 of 3, decode_b")
    assert fresh.evaluate("scalesOf(step()).size") == 32
    assert fresh.evaluate("K.sum(5, 9, K.done(5, 9, K.steps.length)) === K.c[5 * K.n + 9]")


def test_source_and_code(fresh):
    fresh.click("#source [data-go] >> text=b_reg = ")
    settle(fresh)
    assert fresh.evaluate("step().kind.array") == "b_smem"
    assert fresh.locator("#source .row.on").count() == 1
    for tab, word in (("LLVM IR", "addrspace(3)"), ("PTX", "ld.shared")):
        fresh.click(f"#tabs [data-tab='{tab}']")
        settle(fresh)
        assert any(word in text for text in fresh.locator("#code .on").all_inner_texts())
    fresh.click("#code div >> text=bar.sync >> nth=0")
    settle(fresh)
    assert fresh.evaluate("step().kind.op") in ("barrier", "wake")


def test_sliders_chips_and_drawings(fresh):
    first = fresh.inner_text("#answer .plan")
    fresh.fill("#axis2", "4")
    assert fresh.inner_text("#answer .plan") != first
    assert any(x in fresh.inner_text("#answer") for x in ("Legal.", "Not legal:"))
    fresh.select_option("#chip", "gfx950")
    assert "mfma" in fresh.inner_text("#answer .plan")
    for chip, first, second in (("padded on sm_90a", "Not legal", "Legal. The model expects"),
                                ("ring on sm_90a", "conflicts", "No bank conflict")):
        fresh.select_option("#chip", chip)
        fresh.fill("#axis0", "0")
        assert first in fresh.inner_text("#answer")
        fresh.fill("#axis0", "1")
        assert second in fresh.inner_text("#answer")
        assert "µs" in fresh.inner_text("#answer")
    drawings = fresh.evaluate("D.figures.map(f => f.key)")
    assert {"tilewright/mma", "tilewright/wgmma", "tilewright/formats"} <= set(drawings)
    for key in drawings:
        fresh.select_option("#figure", key)
        assert fresh.locator("#drawing svg").bounding_box()["width"] > 100
    fresh.click("#records [data-id='tma']")
    settle(fresh)
    assert fresh.inner_text("#title").startswith("18 tma")
    fresh.evaluate("go(K.products[0].number)")
    settle(fresh)
    assert fresh.inner_text("#bankname") == "Layout"
    fresh.evaluate("document.activeElement.blur()")
    fresh.keyboard.press("v")
    settle(fresh)
    assert fresh.inner_text("#title").startswith("5 micro")
