"""Search by an image of one's own: the preview in a real browser, and runs without a model."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from suprank.data.images import FORMATS
from suprank.explorer import Index
from suprank.explorer.web import Explorer, ExplorerRun, uploads
from suprank.workflows.explorers import open_explorer
from tests.browsers import NEEDS_BROWSER, guarded_pages
from tests.explorer import runs
from tests.explorer.web import drawn
from tests.explorer.web.conftest import client_of, png, send_upload, served

RING = png(drawn.figure("ring", 999))


def with_models(two, *embeds, **reasons):
    """The two runs, with these functions in place of their models."""
    return Explorer([replace(run, embed=embed, **reasons) for run, embed in zip(two.runs, embeds, strict=True)])


# Runs without a model


@pytest.mark.parametrize("missing", [0, 1])
def test_a_run_without_a_model_says_why_beside_the_results_of_the_other(two, missing):
    embeds = [run.embed for run in two.runs]
    embeds[missing] = None
    page = send_upload(client_of(with_models(two, *embeds, no_model="X lacks a model; add <one>.")), RING)
    assert page.status_code == 200
    sections = page.text.split('<section class="ranking')[1:]
    assert len(sections) == 2
    assert "X lacks a model; add &lt;one&gt;." in sections[missing]
    assert "<ol" not in sections[missing]
    assert sections[1 - missing].count('<li class="tile') == 48
    assert "other run" not in page.text
    assert f"Results come from {two.runs[1 - missing].data.name} only. X lacks" in page.text  # of the next image


def test_a_model_that_fails_or_is_another_one_leaves_the_results_of_the_other(two, caplog):
    def broken(picture):
        raise OSError("/home/me/secret/model is gone")

    shape = two.runs[0].embed
    page = send_upload(client_of(with_models(two, shape, broken)), RING).text
    assert "Its model cannot embed the image; the terminal" in page
    assert "secret" not in page
    assert "/home/me/secret/model is gone" in caplog.text
    page = send_upload(client_of(with_models(two, lambda picture: np.ones(7), drawn.by_pixels)), RING).text
    assert "The model embeds images in 7 dimensions, but the gallery of by shape has 12" in page
    answers = [send_upload(client_of(with_models(two, embed, None)), RING) for embed in (broken, lambda picture: np.ones(7))]
    assert [answer.status_code for answer in answers] == [500, 500]
    assert "in 7 dimensions" in answers[1].text
    answer = send_upload(client_of(with_models(two, lambda picture: np.full(12, np.nan), None)), RING)
    assert "NaN or infinite" in answer.text


def test_without_any_model_the_control_says_so(images):
    client = client_of(drawn.explorer(images, upload=False))
    page = client.get("/").text
    assert 'form class="upload"' not in page
    assert "search by image: no model" in page
    assert "explore a run, or name one" in page
    answer = send_upload(client, png(Image.new("RGB", (8, 8))))
    assert (answer.status_code, "There is no model to embed the image" in answer.text) == (400, True)


def test_a_run_that_lost_its_model_takes_the_given_one(tmp_path):
    manifest = runs.collection(tmp_path, groups=1, images=2)
    runs.embeddings(tmp_path / "happier" / "embeddings", manifest)
    (tmp_path / "happier" / "recipe.toml").write_text(runs.RECIPE.format(loss="happier"))
    assert open_explorer([tmp_path / "happier"], device="cpu").runs[0].embed is None
    assert open_explorer([tmp_path / "happier"], model="resnet18", device="cpu").runs[0].embed is not None


def test_a_browser_offers_the_formats_that_are_read():
    extensions = [f".{one.partition('/')[2].replace('x-portable-pixmap', 'ppm')}" for one in uploads.TYPES]
    assert {Image.registered_extensions()[one] for one in extensions} == set(FORMATS)


# In a browser

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect
in_browser = [NEEDS_BROWSER, pytest.mark.xdist_group("browser")]

GIVE = """([how, files]) => {
  const data = new DataTransfer();
  for (const [name, type, bytes] of files) data.items.add(new File([new Uint8Array(bytes)], name, {type}));
  const target = document.querySelector("footer");
  const options = {clipboardData: data, dataTransfer: data, bubbles: true, cancelable: true};
  if (how === "paste") target.dispatchEvent(new ClipboardEvent("paste", options));
  else for (const kind of ["dragover", "drop"]) target.dispatchEvent(new DragEvent(kind, options));
}"""


def give(page, how, *files):
    """Drop or paste files (name, type, bytes) on the footer."""
    page.evaluate(GIVE, [how, [[name, kind, list(data)] for name, kind, data in files]])


@pytest.fixture(scope="module")
def address(one):
    with served(one) as found:
        yield found


@pytest.fixture
def opened(browser, address):
    with guarded_pages(browser) as new_page:

        def open_page(**options):
            page = new_page(address, **options)
            page.goto(address)
            return page

        yield open_page


class TestPreview:
    pytestmark = in_browser

    def test_a_chosen_image_is_shown_and_searched_with_enter(self, opened, tmp_path):
        (tmp_path / "ring.png").write_bytes(RING)
        page = opened()
        page.get_by_label("search by image").set_input_files(tmp_path / "ring.png")
        dialog = page.get_by_role("dialog", name="Search by this image?")
        expect(dialog).to_contain_text(f"ring.png, {round(len(RING) / 1000)} kB, 96 × 96 pixels")
        expect(dialog.get_by_role("img")).to_be_visible()
        expect(dialog.get_by_role("button", name="Search")).to_be_focused()
        page.keyboard.press("n")  # no shortcut of the page below
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("Uploaded image")
        expect(page.locator("ol.tiles li").first).to_contain_text("ring")
        assert page.evaluate("document.querySelector('.large img').naturalWidth") == 96

    def test_a_dropped_or_pasted_image_is_canceled_with_escape_or_searched(self, opened, address):
        page = opened()
        for how in ("drop", "paste"):
            give(page, how, ("ring.png", "image/png", RING))
            expect(page.get_by_role("dialog").get_by_role("img")).to_be_visible()
            assert page.evaluate("document.getElementById('image').files.length") == 1
            assert "dropping" not in (page.locator("body").get_attribute("class") or "")
            page.keyboard.press("Escape")
            expect(page.get_by_role("dialog")).to_be_hidden()
            assert page.evaluate("document.getElementById('image').files.length") == 0
            assert page.url == f"{address}/"
        give(page, "paste", ("ring.png", "image/png", RING))
        with page.expect_request(f"{address}/upload") as sent:
            page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator("ol.tiles li").first).to_contain_text("ring")
        assert sent.value.method == "POST"
        assert page.url == f"{address}/upload"

    def test_what_cannot_be_searched_is_said_before_it_is_sent(self, opened, address, tmp_path):
        page = opened()
        dialog = page.get_by_role("dialog")
        for files, said in (
            ([("notes.txt", "text/plain", b"hello")], "notes.txt is not an image."),
            ([("photo.heic", "image/heic", b"x")], "photo.heic cannot be read; save it as JPEG or PNG."),
            ([("a.png", "image/png", b"")], "a.png is empty."),
            ([("a.png", "image/png", RING)] * 2, "These are 2 files; search by one image at a time."),
            ([], "There is no image in the clipboard; copy one first."),
        ):
            give(page, "paste", *files)
            expect(dialog).to_contain_text(said)
            expect(dialog.get_by_role("button", name="Search")).to_be_hidden()
            page.get_by_role("button", name="Close").click()
        (tmp_path / "large.png").write_bytes(b"\0" * 10_000_001)
        page.get_by_label("search by image").set_input_files(tmp_path / "large.png")
        expect(dialog).to_contain_text("large.png has 10.0 MB; choose an image of at most 10 MB.")
        page.keyboard.press("Escape")
        give(page, "drop", ("bad.png", "image/png", b"no picture"))
        expect(page.get_by_role("status")).to_contain_text("This browser cannot show the file.")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Invalid request")
        expect(page.locator("main")).to_contain_text("is not an image")

    def test_without_a_script_the_form_is_sent_and_a_large_image_answered(self, opened, tmp_path):
        (tmp_path / "ring.png").write_bytes(RING)
        (tmp_path / "large.png").write_bytes(b"\0" * 12_000_000)
        page = opened(java_script_enabled=False)
        for name, said in (("large.png", "more than 10 MB"), ("ring.png", "Uploaded image")):
            page.get_by_label("search by image").set_input_files(tmp_path / name)
            page.get_by_role("button", name="upload").click()
            expect(page.locator("main")).to_contain_text(said)

    def test_without_a_model_a_dropped_image_opens_the_reason(self, browser, images):
        data = drawn.data(images, drawn.by_shape)
        with (
            served(Explorer([ExplorerRun(data, Index.build(data.items.embeddings))])) as address,
            guarded_pages(browser) as new_page,
        ):
            page = new_page(address)
            page.goto(address)
            reason = page.get_by_text("There is no model to embed the image")
            expect(reason).to_be_hidden()
            give(page, "drop", ("ring.png", "image/png", RING))
            expect(reason).to_be_visible()
            assert page.url == f"{address}/"
