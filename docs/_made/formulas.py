"""Formulas: LaTeX in Markdown becomes MathML, which browsers draw by themselves."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves of $...$ and $$...$$.
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_DISPLAY = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)
# A prime is drawn raised already, and a named function keeps its distance from what it is of.
_PRIME = re.compile(r"<msup>(<mi>[^<]*</mi>)<mi>&#x02032;</mi></msup>")
_FUNCTION = re.compile(r"(<mi>(?:log|exp|min|max|cos|var)</mi>)(?=<(?:mi|mn|msub|msup|mfrac|mrow))")


def drawn(page: str) -> str:
    """Return a page's HTML with its formulas as MathML, those on lines of their own in boxes that scroll."""
    page = _INLINE.sub(lambda found: _mathml(found[1], "inline"), page)
    return _DISPLAY.sub(lambda found: f'<div class="formula">{_mathml(found[1], "block")}</div>', page)


def _mathml(latex: str, display: str) -> str:
    found = convert(html.unescape(latex).strip(), display=display)
    found = _PRIME.sub(r'<mrow>\1<mo lspace="0" rspace="0">&#x02032;</mo></mrow>', found)
    return _FUNCTION.sub(r'\1<mspace width="0.17em"/>', found)
