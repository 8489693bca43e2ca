"""The page's answers: what it shows, and what it refuses."""

import io
import re
import socket
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import urlsplit

import httpx2
import numpy as np
import pytest
from PIL import Image

from suprank.data import Manifest
from suprank.explorer import Index
from suprank.explorer.web import Explorer, ExplorerRun, ImageId, uploads
from tests.explorer.runs import of_arrays
from tests.explorer.web import drawn
from tests.explorer.web.conftest import client_of, png, send_upload, served

EVIL = "<script>alert('label')</script>"


def bomb(width, height):
    """A PNG of a few bytes that claims to be huge."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


@pytest.fixture
def evil(tmp_path):
    """Images whose labels, paths, splits and run are called so as to break out of the page."""
    columns = {
        "path": [f'"><img src=x onerror=alert({row})>.png' for row in range(4)],
        "split": ["test"] * 4,
        "label_kind": [EVIL, EVIL, '" onmouseover="alert(1)', "{{ 7 * 7 }}"],
    }
    manifest = Manifest.from_columns(columns, root=tmp_path)
    data = of_arrays("</title><script>alert('run')</script>", np.eye(4, dtype=np.float32) + 0.1, manifest)
    found = Explorer([ExplorerRun(data, Index.build(data.items.embeddings))])
    found.node_metrics[0].measure()
    return client_of(found)


# What it shows


def test_the_first_page_has_no_more_than_a_page_of_images(client):
    page = client.get("/")
    assert page.status_code == 200
    assert page.text.count("<img ") == 48
    assert 'href="/?offset=48"' in page.text
    assert client.get("/?offset=48").text.count("<img ") == 48
    assert "beyond the last of 96" in client.get("/?offset=4800").text


def test_an_image_shows_its_neighbors_with_ranks_scores_and_levels(client, one):
    page = client.get("/item/a/gallery/3").text
    (ranking,) = one.searcher.neighbors(ImageId(0, "gallery", 3))
    assert re.findall(r'<li class="tile level-\d">\s*<a class="frame" href="/item/(\S+)"', page) == [
        str(hit.image) for hit in ranking.hits
    ]
    assert f"{ranking.hits[0].score:.3f}" in page
    assert "same kind" in page
    assert "95 images, ranked in" in page


def test_filters_are_in_the_address_and_stay_on_the_way(client):
    page = client.get("/item/a/gallery/3?level=0").text
    shown = page.split("<ol")[1].split("</ol>")[0]
    assert set(re.findall(r"level-\d", shown)) == {"level-0"}
    assert re.search(r'href="/item/a/gallery/\d+\?level=0"', shown)
    assert 'href="/item/a/gallery/3?offset=48&amp;level=0"' in page
    assert '<option value="0" selected>' in page
    assert client.get("/?q=clover").text.count('class="frame"') == 8


def test_two_runs_stand_side_by_side(two):
    page = client_of(two).get("/item/a/gallery/40").text
    assert page.count('<section class="ranking') == 2
    assert "other run: 1<" in page
    other = client_of(two).get("/item/b/gallery/40").text
    assert other.count('<section class="ranking') == 2


@pytest.mark.parametrize(("first", "second", "said"), [(2, 1, "same kind"), (1, 2, "same kind"), (2, 0, None), (0, 2, None)])
def test_runs_evaluated_at_other_levels_are_compared_at_those_of_both(images, first, second, said):
    def run_with_levels(number):
        levels = ["label_kind", "label_family"][number:]
        fewer = Manifest.from_columns(images.table.drop_columns(levels), root=images.root, levels=images.levels[:number])
        data = drawn.data(fewer, drawn.by_shape, f"of {number} levels")
        return ExplorerRun(data, Index.build(data.items.embeddings))

    found = Explorer([run_with_levels(first), run_with_levels(second)])
    for metrics in found.node_metrics:
        metrics.measure()
    client = client_of(found)
    for address in ("/", "/item/a/gallery/0", "/item/b/gallery/0", "/tree"):
        assert client.get(address).status_code == 200
    lists = client.get("/item/a/gallery/0").text.split("<ol")[1:]
    words = [re.findall(r'class="level">(.*?)<', one) for one in lists]
    if said:
        assert words[0] == words[1]  # the embeddings are the same
        assert set(words[1]) == {said, "other"}
    else:
        assert not words[1]
        assert bool(words[0]) == bool(first)


def test_the_tree_has_metrics_and_samples(client, one):
    page = client.get("/tree?node=1.0").text
    flower = one.tree.summary(one.tree.children(None).labels[0].node)
    assert f"{100 * flower.finest[0].ap:.1f}" in page
    assert page.count('class="frame"') == 24
    assert "clover" in page
    assert "lowest AP" in client.get("/tree?order=worst").text


def test_a_label_leads_to_its_queries_and_to_its_images_in_the_gallery(tmp_path):
    queries = Manifest.from_columns({"path": ["q"], "split": ["query"], "label_kind": ["a"]}, root=tmp_path)
    columns = {"path": ["1", "2", "3"], "split": ["gallery"] * 3, "label_kind": ["a", "a", "b"]}
    data = of_arrays(
        "x", np.eye(1, 3, dtype=np.float32), queries, np.eye(3, dtype=np.float32), Manifest.from_columns(columns, root=tmp_path)
    )
    client = client_of(Explorer([ExplorerRun(data, Index.build(data.items.embeddings))]))
    for node, counts in (("0.0", ["1 query", "2 images in the gallery"]), ("0.1", ["0 queries", "1 image in the gallery"])):
        page = client.get(f"/tree?node={node}").text
        links = re.findall(r'<a href="(/\?[^"]*)">([^<]*)</a>', page)
        assert [text for _, text in links] == counts
        for address, text in links:
            listed = client.get(address.replace("&amp;", "&")).text
            assert listed.count('class="tile"') == int(text.split()[0])
        assert page.count('class="tile"') == int(counts[1][0])


def test_pictures_are_sent_by_row(client, images):
    answer = client.get("/picture/small/a/gallery/3")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    own = Image.open(images.root / images.paths[3].as_py())
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(answer.content))), np.asarray(own))


def test_a_missing_or_damaged_picture_is_drawn_and_comes_back(tmp_path):
    images = drawn.manifest(tmp_path, each=1)
    client = client_of(drawn.explorer(images))
    file = tmp_path / images.paths[0].as_py()
    file.write_bytes(b"\xff\xd8\xff nothing of a picture")
    answer = client.get("/picture/small/a/gallery/0")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "image/svg+xml")
    Image.new("RGB", (8, 8), "red").save(file, "PNG")
    assert client.get("/picture/small/a/gallery/0").status_code == 200


def test_what_is_measured_later_is_said(images):
    data = drawn.data(images, drawn.by_shape)
    found = Explorer([ExplorerRun(data, Index.build(data.items.embeddings))])
    assert "are being measured" in client_of(found).get("/tree").text
    assert client_of(found).get("/item/a/gallery/1").status_code == 200


def test_images_without_labels_can_be_looked_at(tmp_path):
    rows = {"path": ["a.png", "b.png"], "split": ["test"] * 2}
    data = of_arrays("plain", np.eye(2, dtype=np.float32), Manifest.from_columns(rows, root=tmp_path, levels=()))
    client = client_of(Explorer([ExplorerRun(data, Index.build(data.items.embeddings))]))
    for address in ("/", "/item/a/gallery/0", "/tree", "/?q=a"):
        assert client.get(address).status_code == 200
    assert 'class="tile level-none"' in client.get("/item/a/gallery/0").text


# Uploads


def test_an_upload_finds_its_like_and_is_not_kept(client, one, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.SpooledTemporaryFile.rollover", lambda self: pytest.fail("written to disk"))
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (1400, 1400, 3), np.uint8))
    large = png(noise)
    assert len(large) > 5_000_000
    assert send_upload(client, large).status_code == 200
    answer = send_upload(client, png(drawn.figure("ring", 999)))
    assert answer.status_code == 200
    assert 'src="data:image/png;base64,' in answer.text
    assert ">ring<" in answer.text.split("<ol")[1].split("</li>")[0]
    assert client.get("/upload").status_code == 400


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "The form contains no image"),
        (b"<svg onload=alert(1)>", "is not an image"),
        (png(Image.new("RGB", (64, 64)))[:60], "cannot be decoded"),
        (bomb(60_000, 60_000), "claims 60,000 × 60,000 pixels, and more than 50,000,000 are not decoded; make it smaller."),
    ],
)
def test_a_bad_upload_is_answered_with_a_sentence(client, data, said):
    answer = send_upload(client, data)
    assert answer.status_code == 400
    assert said in answer.text
    assert "Traceback" not in answer.text


def test_an_upload_of_too_many_bytes_is_refused(client):
    for size in (uploads.MAX_BYTES + 1, uploads.MAX_BYTES + 50_000):
        answer = send_upload(client, b"\xff" * size)
        assert answer.status_code == 413
        assert "more than 10 MB" in answer.text


def test_a_body_without_an_end_is_cut_off(one):
    head = (
        "POST /upload HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: multipart/form-data; boundary=x",
        "Content-Length: 1000000000000",
        "",
        "--x",
        'Content-Disposition: form-data; name="image"; filename="a"',
        "\r\n",
    )
    taken = 0
    with served(one) as address, socket.create_connection(("127.0.0.1", urlsplit(address).port), timeout=30) as connection:
        connection.sendall("\r\n".join(head).encode())
        with suppress(ConnectionError):
            while taken < 1_000_000_000:
                taken += connection.send(b"\0" * 1_000_000)
    assert 20 * uploads.MAX_BYTES <= taken < 1_000_000_000


def test_a_burst_of_uploads_holds_two_pictures_at_a_time(images):
    there, most, counting = 0, 0, threading.Lock()

    def slow(picture):
        nonlocal there, most
        with counting:
            there += 1
            most = max(most, there)
        time.sleep(0.05)
        with counting:
            there -= 1
        return drawn.by_shape(picture)

    data = drawn.data(images, drawn.by_shape)
    with (
        served(Explorer([ExplorerRun(data, Index.build(data.items.embeddings), slow)])) as address,
        ThreadPoolExecutor(8) as pool,
    ):
        ring = {"image": ("a.png", png(drawn.figure("ring", 1)), "image/png")}
        answers = list(pool.map(lambda _: httpx2.post(f"{address}/upload", files=ring, timeout=60).status_code, range(6)))
    assert answers == [200] * 6
    assert most <= 2


def test_other_forms_are_refused(client):
    assert client.post("/upload", data={"image": "text"}).status_code == 400
    assert client.post("/upload", files=[("image", b"1"), ("image", b"2")]).status_code == 400
    answer = client.post("/upload", content=b"nonsense", headers={"content-type": "multipart/form-data; boundary=x"})
    assert answer.status_code == 400
    assert client.post("/upload", content=b"x", headers={"content-type": "multipart/form-data"}).status_code == 400


# What it refuses


@pytest.mark.parametrize(
    "address",
    [
        "/nothing",
        "/item/a/gallery/96",
        "/item/a/gallery/-1",
        "/item/a/gallery/x",
        "/item/b/gallery/0",
        "/item//gallery/0",
        "/item/ab/gallery/0",
        "/item/a/query/0",
        "/item/a/train/0",
        "/item/a/gallery/99999999999999999999999999",
        "/tree?node=9.1",
        "/tree?node=0.99",
        "/tree?node=x",
        "/picture/small/a/gallery/96",
        "/picture/huge/a/gallery/0",
        "/picture/small/a/gallery/..%2f..%2fetc%2fpasswd",
        "/picture/small/a/gallery/../../../../etc/passwd",
        "/picture/small/a/..%2f..%2f/0",
        "/static/..%2f..%2fapp.py",
        "/templates/base.html",
        "/docs",
        "/openapi.json",
    ],
)
def test_what_is_not_here_is_404(client, address):
    answer = client.get(address)
    assert answer.status_code == 404
    assert "Not found" in answer.text
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    "address",
    [
        "/?offset=-1",
        "/?offset=x",
        "/?offset=9999999999999",
        "/?offset=²",
        "/?split=nothing",
        "/?side=query",
        "/?q=" + "a" * 201,
        "/item/a/gallery/0?level=3",
        "/item/a/gallery/0?level=-1",
        "/item/a/gallery/0?split=train",
        "/tree?order=DROP",
    ],
)
def test_what_makes_no_sense_is_400_and_says_why(client, address):
    answer = client.get(address)
    assert answer.status_code == 400
    assert "Invalid request" in answer.text


def test_every_answer_has_the_headers(client):
    answers = [client.get(address) for address in ("/", "/nothing", "/style.css", "/script.js", "/picture/small/a/gallery/0")]
    answers += [client.get("/?offset=x"), send_upload(client, b"x"), client.get("/", headers={"host": "evil.example"})]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; img-src 'self' data:; style-src 'self'; script-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"  # so that our own forms say their Origin
        assert "server" not in answer.headers


def test_pages_hold_nothing_that_the_policy_forbids(client, two):
    for address in ("/", "/?q=star", "/item/a/gallery/3", "/tree", "/tree?node=1.1", "/help", "/nothing"):
        for page in (client.get(address).text, client_of(two).get(address).text):
            assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|https?://", page)
            assert re.findall(r"<script[^>]*>", page) == re.findall(r'<script src="/script.js\?v=\w+" defer>', page)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "192.168.0.7", "", "localhost.x", "localhost.."),
        *("[::1].evil.example", "[::1]evil.example:8000", "[::1", "::1", "[127.0.0.1]", "127.0.0.1:80.evil.example"),
        *("localhost:8000@evil.example", "localhost@evil.example", "localhost/evil.example", "localhost:-1", "127.0.0.1 "),
    ],
)
def test_foreign_hosts_are_refused_on_loopback(client, host):
    assert client.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8000", "[::1]:8000", "[::1]", "LOCALHOST", "127.0.0.2:1"])
def test_loopback_hosts_are_answered(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


def test_bound_to_another_address_any_host_is_answered(one):
    assert client_of(one, "0.0.0.0").get("/", headers={"host": "machine.lan:8000"}).status_code == 200


def test_forms_of_other_sites_are_refused(client):
    data = {"files": {"image": ("a.png", png(drawn.figure("ring", 1)), "image/png")}}
    assert client.post("/upload", **data, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client.post("/upload", **data, headers={"sec-fetch-site": "same-origin"}).status_code == 200


@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
def test_nothing_can_be_changed(client, method):
    for address in ("/", "/item/a/gallery/0", "/tree", "/picture/small/a/gallery/0"):
        assert getattr(client, method)(address).status_code == 405


def test_everything_is_escaped(evil):
    for address in (
        "/",
        "/?q=<script>",
        "/item/a/gallery/0",
        "/tree",
        "/tree?node=0.0",
        "/?node=0.1",
        '/?q="><script>alert(1)</script>',
    ):
        page = evil.get(address)
        assert page.status_code == 200
        assert "<script>" not in page.text
        assert "<img src=x" not in page.text
        assert '" onmouseover="' not in page.text
        assert "49" not in re.findall(r'class="label">([^<]*)<', page.text)
    assert "&lt;script&gt;" in evil.get("/tree").text
    assert "<script>" not in evil.get("/?split=<script>alert(1)</script>").text


def test_missing_images_are_drawn(evil):
    answer = evil.get("/picture/small/a/gallery/0")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "image/svg+xml")
    assert answer.headers["cache-control"] == "no-store"


def test_an_error_of_ours_tells_nothing_of_the_machine(one, monkeypatch):
    monkeypatch.setattr(one.browser, "list_images", lambda *_, **__: 1 / 0)
    answer = client_of(one).get("/")
    assert answer.status_code == 500
    assert "ZeroDivisionError" not in answer.text
    assert "Something went wrong" in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_nothing_is_written_beside_the_images(client, images):
    def state():
        return {path: path.stat().st_mtime_ns for path in images.root.rglob("*")}

    before = state()
    for address in ("/", "/item/a/gallery/0", "/tree?node=1.0", "/picture/large/a/gallery/0"):
        assert client.get(address).status_code == 200
    assert send_upload(client, png(drawn.figure("ring", 1))).status_code == 200
    assert state() == before


def test_no_answer_leads_to_the_host_that_a_request_names(one):
    client = client_of(one, "0.0.0.0")
    answer = client.get("/tree/?level=1", headers={"host": "evil.example"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/tree?level=1")
