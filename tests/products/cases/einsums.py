"""Rows of the table of products: einsum and tensordot."""

from __future__ import annotations

from typing import Any

from tests.products.case import CPU, Case, row, some

SIZES = dict(zip("abcdefghijklmnxyz", (3, 4, 5, 2, 6, 3, 1, 7, 5, 6, 7, 8, 9, 4, 3, 8, 2)))


def einsum(subscripts: str, format: str = "f32", on: tuple[str, ...] = CPU, layout: str = "", **more: Any) -> Case:
    """A row of operands in this format, which lie so."""
    terms, _, result = subscripts.partition("->")
    a, b, *others = (f"{format} {'x'.join(str(SIZES[x]) for x in term)}{layout and ' ' + layout}"
          for term in terms.split(","))
    if "out" in more:
        sizes = "x".join(str(SIZES[x]) for x in result)
        more["out"] = tuple(x.replace("-", sizes) for x in more["out"])
    return row(a, b, others=tuple(others), call="einsum", subscripts=subscripts, on=on, **more)


def tensordot(a: str, b: str, axes: Any, subscripts: str, **more: Any) -> Case:
    return row(a, b, call="tensordot", options={"axes": axes}, subscripts=subscripts, **more)


def beside(subscripts: str, epilogue: str = "", format: str = "f32", read: str = "", **more: Any) -> Case:
    """A row with arrays beside the operands, by the labels of their axes, "1" for one of size 1."""
    arrays = {name: f"{read or format} {'x'.join('1' if x == '1' else str(SIZES[x]) for x in labels) or '-'}"
              for name, labels in more.items() if name not in (*Case._fields, "layout") or name == "c"}
    return einsum(subscripts, format, **(more | arrays), epilogue=epilogue)


PAIRS = ("ij,jk->ik", "ij,jk->ki", "ji,jk->ik", "ij,kj->ki", "bij,bjk->bik", "bij,bjk->kbi", "abij,abjk->abik",
      "ibj,bjk->bki",
         "xkyl,lnk->nxy", "xyk,kn->nxy", "abk,kc->cab", "i,i->", "ij,ij->", "abc,abc->", "ij,j->i", "ji,j->i",
               "j,ij->i", "ij,j->j",
         "ii,i->i", "i,j->", "ij,ji->", "ij,i->", "ij,jk->i", "ij,kl->ik", "ij,ij->ij", "aij,ajk->kai",
               "aebf,dfce->abcd",
         "iij,j->j", "abc,abd->dc", "abc,abd->cd", "a,bcda->cb", "dega,dfbc->aebfgc")
CHAINS = ("ij,jk,kl->il", "aij,ajk,akl->ail", "ij,ik,il->jkl", "ij,jk,kl,lm->im", "bi,ij,jk->kb", "ijz,jk,kl->il",
      "ij,jk,ki->",
          "ij,j,jk->ik", "ij,jk,kl->li")
GPUS = ("sm_90a", "gfx942")

CASES = [
    *some(5, (einsum(text, x, layout=layout) for text in PAIRS for x in ("f32", "i32", "f16")
              for layout in ("", "reversed", "columns"))),
    *some(3, (einsum(text, x, layout="sparse" if x == "u8" else "") for text in PAIRS[4:12]
              for x in ("f64", "i8", "u8", "i64", "c64", "c128", "bool", "bf16", "e4m3fn", "i4"))),
    *(einsum(text, out=(f"f32 -{layout}",)) for text in PAIRS for layout in ("", " reversed") if text[-1] != ">"),
    *(einsum(text, x) for text in CHAINS for x in ("f32", "f64", "i32")),
    *(einsum(text, out=(f"{out} -",)) for text in CHAINS[:5] for out in ("f32", "f64")),
    *(einsum("ij,jk,kl->il", options={"optimize": how}) for how in (
        ["einsum_path", (0, 1), (0, 1)], ["einsum_path", (1, 2), (0, 1)], False, "greedy", "optimal", ("greedy", 100))),
    *(einsum(text, options={"order": order}) for text in ("ij,jk->ik", "dega,dfbc->aebfgc", "abk,kc->cab")
      for order in ("F", "C")),
    *(einsum("ij,jk->ik", options={"threads": threads}) for threads in (1, 2)),
    *(tensordot(f"f32 {a}", f"f32 {b}", axes, text) for a, b, axes, text in (
        ("2x3x4", "3x4x5", 2, "abc,bcd->ad"), ("2x3x4", "4x15", 1, "abc,cd->abd"),
        ("2x3x4", "3x4x5", ([1, 2], [0, 1]), "abc,bcd->ad"), ("2x3x4", "3x4x5", [(2, 1), (-2, -3)], "abc,bcd->ad"),
        ("2x3x4", "3x4x5", (2, 1), "abc,dce->abde"), ("3x4x5", "6x7x5", ([2], [2]), "abc,dec->abde"),
        ("2x3x4", "2x3x6", ([1, 0], [1, 0]), "abc,abd->cd"), ("4x5", "3x4x5", (0, 1), "ab,cad->bcd"),
        ("4x5", "4x5", (1, -1), "ab,cb->ac"), ("2x3x4", "3x4x5", 0, "abc,def->abcdef"),
        ("2x3x4 backwards", "3x4x5", 2, "abc,bcd->ad"), ("4x3x3", "3x3x4", ([1, 2], [1, 0]), "abc,cbd->ad"),
        ("4x3x3", "3x3x4", (-1, 0), "abc,cde->abde"), ("2x3", "4x5", ([], []), "ab,cd->abcd"),
        ("40x3x200", "3x200x2", ([2, 1], [1, 0]), "abc,bcd->ad"),
              ("3x40x200", "3x200x2", ([0, 2], [0, 1]), "abc,acd->bd"))),
    tensordot("f32 2x3x4", "f64 3x4x5", 2, "abc,bcd->ad"),
    # on GPUs: as few launches as there are products and batches that do not fold
    *(einsum(text, on=GPUS, launches=launches, results=("f32",)) for text, launches in (
        ("ae,eb->ab", 1), ("cea,ecb->ba", 1), ("abe,eb->ba", 1), ("dab,dbc->dac", 1), ("aeb,ec->abc", 1),
        ("aefb,fc->abce", 3), ("a,b->ba", 1), ("aab,b->a", 1), ("ga,ab->gb", 1), ("ab,bc,ce->ae", 2))),
    *(einsum("aeb,ec->cab", on=GPUS, out=(f"{out} -",)) for out in ("f32", "f64")),
    *(einsum(text, on=GPUS) for text in ("xyk,kn->nxy", "ij,jk,kl->il")),
    # alpha, beta, c and an epilogue, in the last product: stacks, axes that do not merge, products of none, chains
    *some(3, (beside(text, "bias" if x == "i32" else "bias relu", x, read=read, bias=text[-1], layout=layout,
                     results=(result,))
              for text in (*PAIRS, *CHAINS) if text[-1] != ">"
              for x, read, result in (("f32", "", "f32"), ("f64", "", "f64"), ("i32", "", "i32"), ("f16", "f32", "f16"))
              for layout in ("", "reversed", "columns"))),
    *(beside(text, "bias relu", bias=text[-1], out=(f"f32 -{layout}",)) for text in PAIRS if text[-1] != ">"
      for layout in ("", " reversed")),
    *(beside(text, format=x, c=text[text.index(">") + 1:], options={"alpha": 2, "beta": -1}, layout=layout)
      for text in (*PAIRS, *CHAINS[:4]) for x, layout in (("f32", ""), ("i8", "reversed"), ("c64", "columns"))),
    *(beside(text, format=x, options={"alpha": alpha})
      for text in ("xkyl,lnk->nxy", "ij,jk->ki", "iij,j->j", "ij,kl->ik")
      for x in ("bool", "bf16", "i4", "u8") for alpha in (3, 0) if (x, alpha) != ("i4", 0)),
    *(beside(text, "residual", bias=bias, res=res) for text in ("xkyl,lnk->nxy", "xyk,kn->nxy", "xkyl,lnk->xyn",
                                                              "aebf,dfce->abcd", "abij,abjk->abik")
      for bias, res in ((text[-1], text[text.index(">") + 1:]), (f"{text[text.index('>') + 1]}" + "1" * (
          len(text) - text.index(">") - 2), f"1{text[-2:]}"), ("", text[text.index(">") + 1] + "1" + text[
              text.index(">") + 3:]))),
    *(beside(text, function, **{name: text[-1] for name in ("bias",) if function != "row max"}, values=values)
      for text in ("xkyl,lnk->nxy", "xkyl,lnk->yxn", "abij,abjk->abik", "ij,jk,kl->li", "aij,ajk->kai", "ij,ij->ij")
      for function, values in (("row max and columns", "whole"), ("row max", "whole"), ("biased and not", "normal"))),
    *(beside(text, "pairs") for text in ("xkyl,lnk->xyn", "xyk,kn->xny", "ij,jk,kl->il", "xkyl,lnk->yxn")),
    *(beside(text, "bias gelu", x, read="f32", bias=text[-1], values="normal", options={"out_dtype": "f32"})
      for text in ("xkyl,lnk->xyn", "xkyl,lnk->nxy") for x in ("bf16", "e4m3fn", "f32")),
    *(beside(text, "scale and residual", res=text[text.index(">") + 1:], by="", on=GPUS, results=("f32",))
      for text in ("ae,eb->ab", "cea,ecb->ba", "abe,eb->ba", "dab,dbc->dac", "aefb,fc->abce", "ab,bc,ce->ae")),
    *(beside(text, c=text[text.index(">") + 1:], on=GPUS, options={"alpha": 2, "beta": 3}, results=("f32",))
      for text in ("ae,eb->ab", "cea,ecb->ba", "aefb,fc->abce", "ab,bc,ce->ae")),
    *(beside("aefb,fc->abce", "bias relu", bias=bias, out=(f"{out} -",), on=GPUS)
      for bias, out in (("a111", "f32"), ("1bc1", "f64"))),
    beside("aeb,ec->cab", "above and below", on=GPUS),
    tensordot("f32 5x6x3", "f32 6x5x4", ([0, 1], [1, 0]), "abc,bad->cd", on=GPUS),
]
