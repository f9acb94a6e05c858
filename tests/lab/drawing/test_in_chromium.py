"""Figures as Chromium sets them: all text inside the picture, and no text on another one."""

from __future__ import annotations

from pathlib import Path

import tilewright as tw
from tests.helpers import browser
from tests.helpers.figures import drawn
from tilewright.lab.drawing.catalogue import FIGURES

LOOK = """() => [...document.querySelectorAll('figure')].flatMap(figure => {
  const svg = figure.querySelector('svg'), room = svg.getBoundingClientRect(), found = []
  const words = [...svg.querySelectorAll('text')].map(x => [x.textContent, x.getBoundingClientRect()])
  for (const [text, box] of words)
    if (box.left < room.left - 1 || box.right > room.right + 1 || box.top < room.top - 1
        || box.bottom > room.bottom + 1)
      found.push(`${figure.id}: ${text} is outside`)
  for (let i = 0; i < words.length; i++)
    for (let j = i + 1; j < words.length; j++) {
      const [a, b] = [words[i][1], words[j][1]]
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left)
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)
      if (wide > 1.5 && high > 0.4 * Math.min(a.height, b.height))
        found.push(`${figure.id}: ${words[i][0]} | ${words[j][0]}`)
    }
  return found
})"""


def test_no_text_is_outside_or_on_another(tmp_path: Path) -> None:
    page = tmp_path / "figures.html"
    pictures = {key: drawn(key) for key, figure in FIGURES.items() if figure.draw}
    pictures["explain"] = tw.explain(tw.Gemm(1000, 600, 800, "bf16"), "sm_90a").svg()
    page.write_text("<!doctype html><meta charset=utf-8>" + "".join(
        f'<figure id="{key}" style="width:640px">{text}</figure>' for key, text in pictures.items()))
    with browser.browser() as chromium, browser.page(chromium, page) as opened:
        assert opened.evaluate(LOOK) == []
        assert opened.errors == []
