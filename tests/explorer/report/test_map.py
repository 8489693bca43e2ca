"""The map of the classes: what the page holds of it, and in a real browser the map that is moved, searched and pointed at."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from suprank.data import Manifest
from suprank.explorer.findings.class_means import ClassMap
from suprank.explorer.report.header import Header
from suprank.explorer.report.map_section import HEIGHT, LISTED, REST, WIDTH, map_section
from suprank.explorer.report.page import BUDGET, Thumbnails, render_page
from tests.browsers import NEEDS_BROWSER, guarded_pages
from tests.explorer.report.reading import of, parsed
from tests.explorer.runs import of_arrays

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028&amp;<!--"


def drawn_run(name, classes, positions=None, root=".", counts=None, images=()):
    """A run with a class for each pair of a label and a group, at these positions; `images` are rows of single images, which
    stand halfway between their class and the first."""
    fine, coarse = zip(*classes, strict=True)
    number = len(classes)
    positions = np.random.default_rng(0).normal(size=(number, 2)) if positions is None else np.asarray(positions, float)
    columns = {"path": [f"{row}.png" for row in range(number)], "split": ["test"] * number}
    manifest = Manifest.from_columns({**columns, "label_class": fine, "label_group": coarse}, root=root)
    data = of_arrays(name, np.eye(number, dtype=np.float32), manifest)
    labels, groups = manifest.labels.T.astype(np.int64)
    order = np.argsort(labels)
    found = ClassMap(
        positions[order],
        labels[order],
        groups[order],
        np.ones(number, np.int64) if counts is None else np.asarray(counts)[order],
        order,
        "t-SNE",
        number,
        0.5,
        0.25,
        np.array(images, np.int64),
        (positions[list(images)] + positions[0]) / 2,
    )
    return SimpleNamespace(name=name, data=data, map=found)


def section(*runs, budget=BUDGET):
    """The section's content, the data of the script as it reads them, and the thumbnails."""
    thumbnails = Thumbnails(budget)
    found = map_section(runs, thumbnails)
    return found, json.loads(found.content.data), thumbnails


def in_groups(groups):
    return [(f"{row:04}", group) for row, group in enumerate(groups)]


# What the page holds


def test_positions_fill_the_drawing_in_the_picture_and_in_the_data():
    found, data, _ = section(drawn_run("x", in_groups("aba"), [[-5, 0.1], [5, 0.2], [0, 0.15]]))
    (picture,) = found.content.pictures
    assert [(mark.group, mark.d) for mark in picture.marks] == [(0, "M24 24h0M500 320h0"), (1, "M976 616h0")]
    assert data["runs"][0]["classes"] == {"x": [2400, 97600, 50000], "y": [2400, 61600, 32000]}
    _, data, _ = section(drawn_run("x", in_groups("ab"), [[1, 1], [1, 1]]))
    assert data["runs"][0]["classes"] == {"x": [100 * WIDTH / 2] * 2, "y": [100 * HEIGHT / 2] * 2}


def test_groups_differ_by_color_and_shape_and_the_largest_come_first():
    groups = [f"group {number:02}" for number in range(60)]
    found, data, _ = section(drawn_run("x", in_groups([*groups, "large", "large"])))
    legend = found.content.legend
    assert (legend[0].name, legend[0].count, data["classes"]["group"][-1]) == ("large", 2, 0)
    assert (legend[-1].name, legend[-1].count) == (REST, 61 - LISTED)
    assert len({(one.color, one.path) for one in legend}) == LISTED + 1
    assert {mark.color for mark in found.content.pictures[0].marks} == set(range(10))
    assert data["classes"]["group"][LISTED - 1 : -2] == [LISTED] * (61 - LISTED)
    assert section(drawn_run("x", in_groups("aa")))[0].content.legend == (), "one group needs no legend"


def test_labels_cannot_end_the_data_and_come_out_as_they_are():
    found, data, _ = section(drawn_run("x", [(HOSTILE, "a"), ("b", HOSTILE)]))
    assert not re.search("[<>&\u2028]", found.content.data)
    assert HOSTILE in data["classes"]["name"]
    assert HOSTILE in data["paths"]


def test_two_runs_share_the_classes_and_a_class_that_one_lacks_has_no_position_there():
    one = drawn_run("one", [("a", "g"), ("b", "g")], [[0, 0], [1, 1]])
    other = drawn_run("other", [("c", "h"), ("a", "g")], [[0, 0], [1, 1]])
    _, data, _ = section(one, other)
    assert data["classes"]["name"] == ["a", "b", "c"]
    assert [run["classes"]["x"] for run in data["runs"]] == [[2400, 97600, None], [97600, None, 2400]]


def test_the_largest_classes_have_images_and_a_class_without_is_counted_once(tmp_path):
    draw = np.random.default_rng(0)
    for row in range(6):
        Image.fromarray(draw.integers(0, 256, (30, 30, 3), np.uint8)).save(tmp_path / f"{row}.png")
    counts = [1, 5, 2, 6, 4, 3]
    runs = [drawn_run(name, in_groups("aabbcc"), root=tmp_path, counts=counts) for name in ("one", "other")]
    size = len(Thumbnails().get(runs[0].data.items, 3).uri)
    text = section(*runs, budget=0)[0].content
    page = len(text.data) + sum(len(mark.d) for picture in text.pictures for mark in picture.marks)
    found, data, thumbnails = section(*runs, budget=page + 2 * size)
    assert [image is not None for image in data["classes"]["image"]] == [False, True, False, True, False, False]
    assert len(thumbnails.embedded()) == 2, "the map itself counts, too"
    assert any("4 classes are shown without an image, those with the fewest images." in words for words in found.about)


def test_single_images_have_their_class_and_a_position_and_share_the_budget(tmp_path):
    for row in range(3):
        Image.new("RGB", (9, 9), (row, 0, 0)).save(tmp_path / f"{row}.png")
    run = drawn_run("x", in_groups("aba"), [[0, 0], [2, 2], [1, 1]], root=tmp_path, images=[1, 2])
    found, data, _ = section(run)
    assert data["runs"][0]["images"] == {"x": [50000, 26200], "y": [32000, 17200], "class": [1, 2], "image": [1, 2]}
    assert found.content.images == 2
    assert any("“Show images” adds 2 single images" in words for words in found.about)
    assert section(run, budget=0)[1]["runs"][0]["images"]["image"] == [None, None]


# In a browser

SIDE, ROWS = 8, 5  # classes on a grid
NAMES = [f"Klasse {row:02}" for row in range(SIDE * ROWS)]
NAMES[13], NAMES[21] = "Große Ähre", HOSTILE


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Two runs, the second with the first's map upside down, and a single image between classes 0 and 17."""
    root = tmp_path_factory.mktemp("map")
    classes = [(name, f"group {row % 4}") for row, name in enumerate(NAMES)]
    for row in range(len(NAMES)):
        Image.new("RGB", (20, 20), (6 * row, 99, 99)).save(root / f"{row}.png")
    grid = np.stack([np.arange(len(NAMES)) % SIDE, np.arange(len(NAMES)) // SIDE], 1)
    runs = [
        drawn_run("one", classes, grid, root, images=[17]),
        drawn_run("other", classes, grid * [1, -1], root, images=[17]),
    ]
    thumbnails = Thumbnails()
    found = map_section(runs, thumbnails)
    page = render_page("maps", ["one", "other"], Header(()), [found], thumbnails.embedded(), levels=2)
    assert [one.attributes.get("type") for one in of(parsed(page), "script")] == ["application/json", None]
    (root / "page.html").write_text(page, encoding="utf-8")
    return root / "page.html"


@pytest.fixture
def opened(browser, file):
    """Opens the page; at the end, no script failed, no label ran, and the map loaded nothing."""
    with guarded_pages(browser) as new_page:

        def open_page(width=1280, **options):
            shown = new_page(file.as_uri(), viewport={"width": width, "height": 900}, **options)
            shown.goto(file.as_uri())
            return shown

        yield open_page


def place(shown, column, row, map_number=0):
    """Where a class of the grid is on the screen, as long as the whole map is shown."""
    box = shown.locator("canvas").nth(map_number).bounding_box()
    x, y = 24 + column / (SIDE - 1) * 952, 24 + row / (ROWS - 1) * 592
    return box["x"] + x * box["width"] / WIDTH, box["y"] + y * box["height"] / HEIGHT


def pixels(shown, map_number=0):
    """The map as it is after the next frame."""
    shown.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return shown.locator("canvas").nth(map_number).evaluate("canvas => canvas.toDataURL()")


def differs(shown, before, map_number=0):
    """Waits until the map shows something else."""
    script = "([number, before]) => document.querySelectorAll('canvas')[number].toDataURL() !== before"
    return shown.wait_for_function(script, arg=[map_number, before])


def returns(shown, before):
    """Waits until the first map shows the same again."""
    return shown.wait_for_function("before => document.querySelector('canvas').toDataURL() === before", arg=before)


def name_at(shown, x, y, map_number=0):
    """The name on the card after the mouse went there; none if there is no card."""
    shown.mouse.move(x, y)
    pixels(shown)
    card = shown.locator(".card").nth(map_number)
    return card.locator("strong").inner_text() if card.is_visible() else None


@NEEDS_BROWSER
@pytest.mark.xdist_group("browser")
class TestBrowser:
    def test_a_class_under_the_mouse_shows_its_image_and_is_marked_on_the_other_map(self, opened):
        shown = opened()
        before = pixels(shown, 1)
        assert name_at(shown, *place(shown, 3, 2)) == "Klasse 19"
        card = shown.locator(".card").first
        assert card.inner_text() == "Klasse 19\ngroup 3\n1 image"
        assert card.locator("use").bounding_box()["width"] > 40, "the image is drawn"
        differs(shown, before, 1)
        assert not shown.locator(".card").nth(1).is_visible()
        shown.mouse.down()
        shown.mouse.up()
        assert name_at(shown, 5, 5) == "Klasse 19", "it stays selected"
        assert shown.locator(".card strong").all_inner_texts() == ["Klasse 19"] * 2

    def test_dragging_moves_the_map_and_the_wheel_and_the_buttons_zoom(self, opened):
        shown = opened()
        whole = pixels(shown)
        x, y = place(shown, 3, 2)
        assert name_at(shown, x + 30, y + 30) is None
        shown.mouse.wheel(0, -200)
        shown.wait_for_timeout(100)
        assert pixels(shown) == whole, "before a click the wheel is the page's"
        shown.mouse.down()
        shown.mouse.move(x + 80, y + 10, steps=4)
        shown.mouse.up()
        assert name_at(shown, x, y) is None
        assert name_at(shown, x + 50, y - 20) == "Klasse 19", "it moved with the mouse"
        moved = pixels(shown)
        shown.mouse.wheel(0, -200)
        differs(shown, moved)
        assert name_at(shown, x + 51, y - 20) == "Klasse 19", "what is under the mouse stays there"
        shown.get_by_role("button", name="Whole map").first.click()
        returns(shown, whole)
        shown.get_by_role("button", name="Zoom in").first.click()
        differs(shown, whole)
        shown.get_by_role("button", name="Zoom out").first.click()
        returns(shown, whole)

    def test_a_search_lists_classes_and_enter_centers_the_first_on_both_maps(self, opened):
        shown = opened()
        field = shown.get_by_label("Find a class")
        field.fill("ahre")
        assert shown.locator(".found").inner_text() == "1 class matches."
        assert shown.locator(".matches button").all_inner_texts() == ["Große Ähre group 1 · 1 image"]
        field.press("Enter")
        found = pixels(shown)
        for number in (0, 1):
            canvas, card = (shown.locator(one).nth(number).bounding_box() for one in ("canvas", ".card"))
            assert card["x"] == pytest.approx(canvas["x"] + canvas["width"] / 2 + 12, abs=1.5)
            assert card["y"] == pytest.approx(canvas["y"] + canvas["height"] / 2 + 14, abs=1.5)
        assert shown.locator(".spoken").inner_text().startswith("Große Ähre")
        field.fill("GROUP 2")
        assert shown.locator(".found").inner_text() == "10 classes match."
        differs(shown, found)  # the others are faint
        shown.locator(".matches button").nth(1).click()
        pixels(shown)
        assert shown.locator(".card strong").all_inner_texts() == ["Klasse 06"] * 2
        field.fill("nothing")
        assert shown.locator(".found").inner_text() == "0 classes match."
        assert not shown.locator(".matches").is_visible()

    def test_a_label_that_is_markup_is_text_in_the_list_and_on_the_card(self, opened):
        shown = opened()
        shown.get_by_label("Find a class").fill("onerror")
        assert shown.locator(".matches button").evaluate("one => one.firstChild.textContent") == HOSTILE
        shown.keyboard.press("Enter")
        pixels(shown)
        assert shown.locator(".card strong").first.evaluate("one => one.textContent") == HOSTILE
        assert shown.locator("img").count() == 0

    def test_the_keyboard_alone_goes_from_class_to_class_and_moves_the_map(self, opened):
        shown = opened()
        whole = pixels(shown)
        shown.get_by_label("Find a class").focus()
        for _ in range(5):
            shown.keyboard.press("Tab")
        assert shown.evaluate("document.activeElement === document.querySelector('canvas')")
        names = []
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"):
            shown.keyboard.press(key)
            pixels(shown)
            names.append(shown.locator(".card strong").first.inner_text())
        first = int(names[0][-2:])  # the one at the center
        assert [int(name[-2:]) - first for name in names] == [0, 1, 9, 8, 0]
        assert shown.locator(".spoken").inner_text().startswith(names[0])
        shown.keyboard.press("Escape")
        returns(shown, whole)
        for key, back in (("Shift+ArrowRight", "Shift+ArrowLeft"), ("+", "-"), ("+", "0")):
            shown.keyboard.press(key)
            differs(shown, whole)
            shown.keyboard.press(back)
            returns(shown, whole)

    def test_the_legend_picks_out_a_group_and_images_are_shown_on_request(self, opened):
        shown = opened()
        whole = pixels(shown)
        group = shown.locator(".legend button").first
        group.click()
        differs(shown, whole)
        group.click()
        returns(shown, whole)
        x, y = place(shown, 0.5, 1)
        assert name_at(shown, x, y) is None
        shown.get_by_role("button", name="Show images").click()
        differs(shown, whole)
        assert name_at(shown, x, y) == "Klasse 17"
        assert shown.locator(".card").first.inner_text().endswith("single image")

    def test_two_fingers_zoom_on_a_phone_and_one_taps(self, opened):
        shown = opened(width=390, has_touch=True, is_mobile=True)
        assert shown.evaluate("document.documentElement.scrollWidth") <= 390
        shown.locator("canvas").first.scroll_into_view_if_needed()
        whole, box = pixels(shown), shown.locator("canvas").first.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        touch = shown.context.new_cdp_session(shown)
        for kind, apart in (("touchStart", 20), ("touchMove", 40), ("touchMove", 60), ("touchEnd", None)):
            points = [] if apart is None else [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        differs(shown, whole)
        shown.get_by_role("button", name="Whole map").first.click()
        returns(shown, whole)
        shown.touchscreen.tap(x + 24 * box["width"] / WIDTH, y)
        card = shown.locator(".card").first
        card.wait_for()
        assert 0 <= card.bounding_box()["x"] <= card.bounding_box()["x"] + card.bounding_box()["width"] <= 390

    def test_without_a_script_and_on_paper_there_is_a_picture(self, opened):
        still, printed = opened(java_script_enabled=False), opened()
        printed.emulate_media(media="print")
        for shown in (still, printed):
            assert shown.locator(".points").first.bounding_box()["width"] > 300
            assert not shown.locator("canvas").first.is_visible()
            assert not shown.get_by_label("Find a class").is_visible()
        dots = still.locator(".points path").first
        assert dots.get_attribute("d").count("M") == 10
        assert dots.evaluate("one => getComputedStyle(one).stroke") == "rgb(31, 119, 180)"
