"""What is on a page: SVG with values on hover, headings that are explained, one script that the page lets run."""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from PIL import Image

from mhrun.report.page import TableOnPage, template
from mhrun.report.picture import lighter
from mhrun.report.style import COLOURS, method_styles, style
from mhrun.report.svg import inline_svg
from mhrun.report.tables import rendered


@pytest.fixture(autouse=True)
def plain_style():
    with style():
        yield
    plt.close("all")


def test_points_have_their_values_on_hover():
    figure, axis = plt.subplots()
    axis.plot([1, 2, 3], [0.5, np.nan, 40.0], label="<script>alert(1)</script>")
    axis.errorbar([1, 2], [5.0, 6.0], [0.25, 0.5], label="with errors")
    axis.axhline(3.0)
    axis.set(xlabel="steps", ylim=(0, 30))
    text = inline_svg(figure, "one")
    titles = re.findall(r"<title>(.*?)</title>", text)
    assert titles == [
        "&lt;script&gt;alert(1)&lt;/script&gt;: 0.500 (steps = 1)",  # the last point is out of sight
        "with errors: 5 ± 0.250 (steps = 1)",
        "with errors: 6 ± 0.500 (steps = 2)",
    ]
    assert "<script" not in text


def test_bars_have_their_values_on_hover():
    figure, axis = plt.subplots()
    axis.barh([0, 1], [2.0, 30.0])
    assert re.findall(r"<title>(.*?)</title>", inline_svg(figure, "bars")) == ["2", "30"]
    figure, axis = plt.subplots()
    axis.bar(["a", "b"], [2.0, 30.0], label="all")
    titles = re.findall(r"<title>(.*?)</title>", inline_svg(figure, "bars"))
    assert titles == ["all: 2 (x = a)", "all: 30 (x = b)"]


def test_figures_share_a_dark_page():
    texts = []
    for name in ("one", "two"):
        figure, axis = plt.subplots()
        axis.plot([1, 2], [3, 4], "o-", markerfacecolor="white", color="black", label="a")
        axis.set(xscale="log")  # whose ticks are mathematical text
        axis.legend()
        texts.append(inline_svg(figure, name))
    ids = [set(re.findall(r'id="([^"]*)"', text)) for text in texts]
    assert not ids[0] & ids[1]
    for text, known in zip(texts, ids, strict=True):
        assert {"".join(pair) for pair in re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', text)} <= known
        assert "#000000" not in text
        assert "#ffffff" not in text
        assert "currentColor" in text
        assert "var(--page)" in text
        assert "http" not in text
        assert "xmlns" not in text
        letters = re.findall(r"<text[^>]*>", text)  # not outlines: they can be found and are small
        assert letters
        assert all("fill: currentColor" in start for start in letters)


@pytest.mark.parametrize("kind", ["image", "cloud", "contours", "large"])
def test_densities_and_large_figures_are_pictures(kind, rng):
    figure, axis = plt.subplots()
    if kind == "image":
        axis.imshow(rng.normal(size=(9, 9)))
    elif kind == "cloud":
        axis.plot(*rng.normal(size=(2, 5000)), ".")
    elif kind == "contours":
        axis.contourf(rng.normal(size=(9, 9)))
    else:
        for _ in range(12):
            axis.plot(rng.normal(size=2000))
    assert inline_svg(figure, "one") is None


def png_of(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return buffer.getvalue()


def test_a_picture_is_made_lighter_only_where_its_colours_are_kept(rng):
    colours = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in COLOURS], np.uint8)
    few = colours[rng.integers(len(colours), size=(200, 300))]
    found = lighter(png_of(few))
    assert len(found) < len(png_of(few))
    with Image.open(io.BytesIO(found)) as picture:
        assert np.array_equal(np.asarray(picture.convert("RGB")), few)
    many = png_of(rng.integers(256, size=(200, 300, 3), dtype=np.uint8))
    assert lighter(many) == many


def test_methods_look_alike_in_every_figure_and_no_two_are_the_same():
    names = [
        "mint",
        "mint_stored",
        "tempered_mcmc",
        "mcmc",
        "sgld",
        "sghmc",
        "mhminibatch_released",
        "barker",
    ]
    looks = method_styles(names + [f"other_{i}" for i in range(24)])
    assert len({tuple(look.items()) for look in looks.values()}) == 32
    assert {look["color"] for look in looks.values()} == set(COLOURS)
    assert len({looks[name]["color"] for name in names}) == 8
    few = method_styles(["sgld", "mcmc", "mint"])
    assert method_styles(names, {}) == method_styles(names)
    assert {name: look["color"] for name, look in few.items()} == {name: looks[name]["color"] for name in few}


def test_methods_that_share_a_colour_differ_in_line_and_marker():
    """A sampler on several data sets, with the colour that it has alone; those that are not there are left out."""
    methods = [f"{sampler}_{data}" for data in "abc" for sampler in ("sgld", "csgld", "sghmc")]
    colours = {s: [f"{s}_a", f"{s}_b", f"{s}_c", f"{s}_d"] for s in ("sgld", "csgld", "sghmc")}
    looks, alone = method_styles([*methods, "mcmc"], colours), method_styles([*colours, "mcmc"])
    assert list(looks) == [*methods, "mcmc"]
    for sampler in colours:
        assert {looks[f"{sampler}_{data}"]["color"] for data in "abc"} == {alone[sampler]["color"]}
        assert looks[f"{sampler}_a"] == alone[sampler]
    assert looks["mcmc"] == alone["mcmc"]
    assert len({(look["color"], look["linestyle"]) for look in looks.values()}) == 10
    assert len({(look["color"], look["marker"]) for look in looks.values()}) == 10


def test_fonts_that_matplotlib_ships_are_not_missed(caplog):
    """Its cache of fonts may be of another installation: twenty lines stood before a result."""
    logger, line = logging.getLogger("matplotlib.font_manager"), "findfont: Font family %s not found."
    with style():
        for name in ("STIXGeneral", "DejaVu Sans Display", "cmr10", "Frutiger"):
            logger.warning(line, [name])
    logger.warning(line, ["STIXGeneral"])
    assert [message.split("'")[1] for message in caplog.messages] == ["Frutiger", "STIXGeneral"]


def test_headings_explain_themselves_and_are_sorted_by():
    frame = pd.DataFrame({"<b>": [1.0], "R-hat": [2.0]}, index=pd.Index(["x"], name="tau"))
    table = TableOnPage("t", "", rendered(frame), {"<b>": 'a "b" & c', "R-hat": "agreement"})
    assert '<th title="a &quot;b&quot; &amp; c">&lt;b&gt;</th>' in table.html
    assert '<th title="agreement">R-hat</th>' in table.html
    assert "<b>" not in table.html
    assert table.html.count("<tr") == 2  # one row of headings, or a click could not sort
    assert '<th class="words">tau</th>' in table.html


def test_text_columns_are_left_aligned_and_numbers_do_not_wrap():
    frame = pd.DataFrame({"method": ["MINT", "a very long name of a method"], "ESS": [1.5, 20.0]})
    of_index = TableOnPage(
        "t", "", rendered(frame.set_index(pd.Index([0.1, 0.2], name="tau"))), {"method": "which"}
    )
    assert '<th class="words" title="which">method</th>' in of_index.html
    assert '<td class="words short">MINT</td>' in of_index.html
    assert '<td class="words">a very long name of a method</td>' in of_index.html
    assert '<td class="short">1.50</td>' in of_index.html
    assert '<td class="short">20.0</td>' in of_index.html
    without = TableOnPage("t", "", rendered(frame), {})
    assert without.html.count("words") == 3  # a heading and two cells


def test_a_page_lets_its_own_script_run_and_no_other():
    page = template("base.html.j2").render(title="<script>alert(1)</script>")
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    )
    assert "unsafe-inline'; script" in page
    assert not re.search(r"https?:|fetch|XMLHttp|innerHTML|eval\(|import", script)
