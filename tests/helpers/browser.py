"""Pages in a headless Chromium: opened from files, looked at, clicked. Tests that need it skip where it is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DESKTOP, PHONE = (1280, 900), (390, 844)


def needed() -> None:
    """Skip the test, with the reason, where there is no browser to look with."""
    pytest.importorskip("playwright.sync_api", reason="needs the Python package playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium (Debian: apt-get install chromium)")


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium, for the pages of several tests."""
    needed()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def page(chromium: Any, path: Path, size: tuple[int, int] = DESKTOP, dark: bool = False, fragment: str = "",
         calm: bool = True) -> Iterator[Any]:
    """The file as a page, offline. `page.errors` are what it wrote to the console as errors, and what it asked the
    network for."""
    width, height = size
    context = chromium.new_context(viewport={"width": width, "height": height}, offline=True,
                                   color_scheme="dark" if dark else "light",
                                   reduced_motion="reduce" if calm else "no-preference")
    try:
        opened = context.new_page()
        opened.errors = []
        opened.on("console", lambda said: opened.errors.append(said.text) if said.type == "error" else None)
        opened.on("pageerror", lambda error: opened.errors.append(str(error)))
        opened.on("request", lambda asked: None if asked.url.startswith(("file:", "data:", "blob:")) else
                  opened.errors.append(f"asked for {asked.url}"))
        opened.goto(path.resolve().as_uri() + fragment)
        yield opened
    finally:
        context.close()


def overflow(opened: Any) -> int:
    """By how many pixels the page is wider than its window."""
    found: int = opened.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return found


def colours(picture: bytes) -> int:
    """Different colours in a screenshot: one or two of an empty page."""
    import io

    import numpy as np
    from matplotlib import image

    pixels = (image.imread(io.BytesIO(picture), format="png")[..., :3] * 255).astype(np.uint32)
    return len(np.unique(pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2]))
