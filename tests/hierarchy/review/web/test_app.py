"""Access by link, refusals, escaping of everything that annotators and sources write, and sample images."""

import io
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from suprank.data import Manifest
from suprank.hierarchy.review import Exclude, Note, Rename, open_branch
from suprank.hierarchy.review.web import create_app
from tests.hierarchy.review.small_project import CHURCH, HUMAN, small_project, tree
from tests.hierarchy.review.web.annotator import Annotator, web_client
from tests.hierarchy.review.web.large_project import large_project

EVIL = "<script>alert('x')</script>"
ALL = ("/", f"/group/{CHURCH}", "/search?q=a", "/tree", f"/parent/{HUMAN}", "/excluded", "/history", "/help")


def stranger(app):
    return web_client(app, follow_redirects=False, raise_server_exceptions=False)


def test_the_link_opens_the_page_and_two_annotators_share_a_browser(project):
    branches = [open_branch(project, name) for name in ("anna", "ben")]
    client = stranger(create_app(project, ["anna", "ben"]))
    for branch in branches:
        answer = client.get(f"/{branch.name}/enter?token={branch.token}")
        assert (answer.status_code, answer.headers["location"]) == (303, f"/{branch.name}/")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert f"path=/{branch.name};" in cookie
    assert 'class="brand" href="/anna/">anna<' in client.get("/anna/").text
    assert '<a href="/anna/tree" aria-current="page">tree</a>' in client.get("/anna/tree").text
    assert 'class="brand" href="/ben/">ben<' in client.get("/ben/").text


def test_a_link_on_another_site_opens_a_page_because_a_redirect_would_lose_the_cookie(project):
    branch = open_branch(project, "anna")
    client = stranger(create_app(project, ["anna"]))
    answer = client.get(f"/anna/enter?token={branch.token}", headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 200
    assert '<meta http-equiv="refresh" content="0; url=/anna/">' in answer.text
    assert client.get("/anna/").status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/anna/", "/ben/", "/anna/enter", "/anna/enter?token=wrong", "/anna/enter?token=", "/x/enter"]
)
def test_without_the_token_nothing_is_shown(reader, path):
    answer = stranger(reader.app).get(path)
    assert answer.status_code == 403
    assert "use the link" in answer.text
    assert "church" not in answer.text


def test_the_cookie_of_one_branch_opens_no_other_and_nothing_changes_without_one(project):
    anna, ben = (open_branch(project, name) for name in ("anna", "ben"))
    app = create_app(project, ["anna", "ben"])
    client = stranger(app)
    client.get(f"/anna/enter?token={anna.token}")
    assert client.get("/ben/").status_code == 403
    assert client.get(f"/ben/enter?token={anna.token}").status_code == 403
    assert client.post("/ben/undo", data={}).status_code == 403
    assert stranger(app).post(f"/anna/group/{CHURCH}", data={"act": "rename", "name": "x"}).status_code == 403
    assert len(ben.log()) == len(anna.log()) == 1


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "192.168.0.7", ""])
def test_foreign_hosts_are_refused_on_loopback(reader, host):
    assert reader.client.get("/anna/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_forms_of_other_sites_are_refused(reader, site):
    before = tree(reader.branch)
    answer = reader.client.post(
        f"/anna/group/{CHURCH}", data={"act": "rename", "name": "x", "seen": f"{CHURCH}:1"}, headers={"sec-fetch-site": site}
    )
    assert answer.status_code == 403
    assert tree(reader.branch) == before


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        *(("http://evil.example", 403), ("http://127.0.0.1:9000", 403), ("evil://127.0.0.1:8000", 403), ("null", 403)),
        *(("http://127.0.0.1:8000", 303), ("https://127.0.0.1:8000", 303), (None, 303)),
    ],
)
def test_old_browsers_identify_other_sites_by_the_origin_only(anna, origin, status):
    data = {"act": "rename", "name": "x", "seen": f"{CHURCH}:1"}
    headers = {} if origin is None else {"origin": origin}
    assert anna.client.post(f"/anna/group/{CHURCH}", data=data, headers=headers).status_code == status
    assert ("x" in tree(anna.branch)[0]) == (status == 303)


@pytest.mark.parametrize("path", ["/", f"/group/{CHURCH}", "/search", "/tree", "/history"])
def test_unknown_query_parameters_are_ignored(reader, path):
    reader.get(f"{path}?path=//evil.example&self=1&name=x")


@pytest.mark.parametrize("act", ["rename", "note", "delete", "exclude"])
def test_numbers_too_large_for_the_database_are_not_found(reader, act):
    data = {"act": act, "all": "1", "name": "x", "reason": "x", "seen": "3:1"}
    for part in ("group", "parent"):
        assert reader.client.post(f"/anna/{part}/99999999999999999999", data=data).status_code == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404),
        ("/group/99", 404),
        ("/group/x", 404),
        ("/group/99999999999999999999999", 404),
        ("/parent/99", 404),
        ("/picture/0", 404),
        ("/picture/..%2f..%2fetc%2fpasswd", 404),
        ("/?sort=DROP", 400),
        ("/?show=x", 400),
        ("/?offset=-1", 400),
        (f"/group/{CHURCH}?sort=l.id;", 400),
        (f"/group/{CHURCH}?order=x", 400),
        ("/search?q=" + "a" * 201, 400),
        ("/tree?level=9", 400),
    ],
)
def test_missing_pages_and_invalid_parameters_get_an_error_page(reader, path, status):
    page = reader.get(path, status=status)
    assert "Traceback" not in page
    assert "root:" not in page
    assert '<a class="brand"' in page or path == "/nothing"


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"act": "nonsense"},
        {"act": "split", "label": "x", "split_name": "y"},
        {"act": "split", "labels": "99", "split_name": "y", "seen": "3:1"},
        {"act": "move", "label": "1", "to": "#1", "seen": "3:1"},
        {"act": "parent", "parent": "99", "seen": "3:1"},
        {"act": "parent", "parent": "4", "seen": "3:1"},
        {"act": "parent", "parent": "x", "seen": "3:1"},
        {"act": "rename", "name": "x", "seen": "nonsense"},
        {"act": "merge:#99", "seen": "3:1"},
    ],
)
def test_manipulated_forms_are_refused(reader, data):
    before = tree(reader.branch)
    answer = reader.client.post(f"/anna/group/{CHURCH}", data=data)
    assert answer.status_code in (400, 409)
    assert tree(reader.branch) == before
    assert reader.client.post("/anna/group/99", data=data).status_code in (400, 404, 409)
    assert reader.client.post("/anna/group/1", data={**data, "act": "split"}).status_code in (400, 404, 409)


def test_a_form_that_is_too_large_or_of_another_type_is_refused(reader):
    assert reader.client.post("/anna/", data={"labels": "1 " * 2_100_000}).status_code == 413
    unbounded = {"content-length": "7", "transfer-encoding": "chunked"}
    assert reader.client.post("/anna/", data={"act": "done"}, headers=unbounded).status_code == 413
    assert reader.client.post("/anna/", files={"x": b"1"}).status_code == 400
    assert reader.client.put("/anna/").status_code == 405


def test_half_a_million_labels_fit_into_a_form(reader):
    answer = reader.client.post("/anna/", data={"act": "split", "labels": "123456 " * 500_000})
    assert "Field exceeded" not in answer.text
    assert answer.status_code in (303, 400, 409)


@pytest.fixture
def evil(tmp_path):
    """A project whose texts would break out of the page."""
    labels = {EVIL: 5, '" onmouseover="alert(1)': 3, "{{ 7 * 7 }}": 2, "plain": 1}
    project = small_project(
        tmp_path / "evil", labels=labels, clusters=[[EVIL, '" onmouseover="alert(1)'], ["{{ 7 * 7 }}", "plain"]]
    )
    with project.transaction() as db:
        db.execute("UPDATE label SET description = ?, qid = 'Q1' WHERE id = 1", (EVIL,))
        db.execute("INSERT INTO label_spelling VALUES (1, ?, 1)", (EVIL + "2",))
        db.execute("INSERT INTO item VALUES (1, 'train', ?, ?, 1)", (EVIL, "javascript:alert(1)"))
        db.execute("INSERT INTO item VALUES (2, 'train', '2', ?, 1)", ('https://x/"><script>alert(3)</script>',))
        db.executemany("INSERT INTO item_label (item, label) VALUES (?, 1)", [(1,), (2,)])
    branch = open_branch(project, "anna")
    branch.apply(Note(3, EVIL))
    branch.apply(Rename(4, EVIL + "!"))
    branch.apply(Exclude((3,), f"because {EVIL}"))
    return Annotator(project, branch)


def test_everything_is_escaped(evil):
    for path in (*ALL, "/group/3", "/group/4", f"/search?q={EVIL}", f"/?q={EVIL}", f"/group/3?q={EVIL}", "/search"):
        page = evil.get(path)
        assert "<script>" not in page
        assert '" onmouseover="' not in page
        assert 'href="javascript:' not in page
        assert "49" not in re.findall(r'class="text">([^<]*)<', page)
        assert "&lt;script&gt;" in page or path in ("/help", "/search?q=a")
    evil.get("/group/3")
    page = evil.press("move", ["plain"], to=EVIL, reason=EVIL, status=400)
    assert "<script>" not in page
    assert page.count("&lt;script&gt;alert(") > 5


def test_pages_contain_nothing_that_the_content_policy_forbids(reader):
    for path in ALL:
        page = reader.get(path)
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)
        assert "=&#34;" not in page  # an attribute that was escaped with its value
        assert re.findall(r"<script[^>]*>", page) == re.findall(r'<script src="/script.js\?v=\w+" defer>', page)
        answer = reader.client.get(f"/anna{path}")
        assert answer.headers["content-security-policy"].startswith(
            "default-src 'none'; img-src 'self' data:; style-src 'self'"
        )


def test_links_to_wikidata_and_commons_send_no_referrer(tmp_path):
    project = large_project(tmp_path / "p", labels=12, clusters=2, largest=6)
    page = Annotator(project, open_branch(project, "anna")).get("/group/3")
    links = re.findall(r"<a [^>]*https?://[^>]*>", page)
    assert 'href="https://www.wikidata.org/wiki/Q1"' in page
    assert ">Place 0</a>" in page
    assert len(links) == 2 + 2 * 6
    assert all('rel="noreferrer noopener"' in link for link in links)


def test_an_internal_error_reveals_nothing_about_the_machine(reader, monkeypatch):
    monkeypatch.setattr("suprank.hierarchy.review.web.group_lists.read_groups", lambda *_: 1 / 0)
    answer = reader.client.get("/anna/")
    assert answer.status_code == 500
    assert "ZeroDivisionError" not in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


# Sample images


def add_images(project, folder, level, names, splits=None):
    folder.mkdir()
    for row in range(len(names)):
        Image.new("RGB", (300, 200), (row * 20, 0, 0)).save(folder / f"{row}.png")
    columns = {
        "path": [f"{row}.png" for row in range(len(names))],
        "split": splits or ["train"] * len(names),
        f"label_{level}": names,
    }
    Manifest.from_columns(columns, root=folder).save(folder / "m.parquet")
    with project.transaction() as db:
        db.executemany(
            "INSERT INTO meta VALUES (?, ?)", {"manifest": str(folder / "m.parquet"), "manifest_level": level}.items()
        )


def shown_rows(page, text):
    row = page.split(f">{text}</label>")[1].split("</tr>")[0]
    return [int(number) for number in re.findall(r'src="/anna/picture/(\d+)"', row)]


def test_sample_images_of_labels(project, tmp_path):
    add_images(project, tmp_path / "i", "kind", ["Chapel", "church", "chapel", "chapel", "chapel"])
    anna = Annotator(project, open_branch(project, "anna"))
    page = anna.get(f"/group/{CHURCH}")
    assert shown_rows(page, "church") == [1]
    assert shown_rows(page, "chapel") == [2, 3, 4]  # Chapel is a name of its own in the manifest
    assert shown_rows(page, "heritage site") == []
    answer = anna.client.get("/anna/picture/1")
    assert answer.status_code == 200
    assert Image.open(io.BytesIO(answer.content)).size == (120, 80)
    assert anna.client.get("/anna/picture/5").status_code == 404
    (tmp_path / "i" / "2.png").unlink()
    missing = anna.client.get("/anna/picture/2")
    assert (missing.status_code, missing.headers["content-type"]) == (404, "image/svg+xml")
    assert stranger(create_app(project, ["anna"])).get("/anna/picture/1").status_code == 403


def test_sample_images_of_items_are_of_their_own_split(tmp_path):
    project = large_project(tmp_path / "p", labels=4, clusters=2, largest=2)  # items 0 and 1 of split train are of label 1
    with project.transaction() as db:
        db.execute("INSERT INTO item VALUES (100, 'index', '1', '', 1)")
        db.execute("INSERT INTO item_label (item, label) VALUES (100, 1)")
    add_images(project, tmp_path / "i", "landmark", ["1", "0", "1", "1"], ["gallery", "train", "train", "train"])
    page = Annotator(project, open_branch(project, "anna")).get("/group/3")
    assert shown_rows(page, "old church 0-0") == [1, 2, 0]
    assert shown_rows(page, "new church 0-1") == []


def test_few_images_are_decoded_at_once(project, tmp_path, monkeypatch):
    add_images(project, tmp_path / "i", "kind", ["church"] * 12)
    review = create_app(project, [open_branch(project, "anna").name]).state.review
    now, most, lock = [0], [0], threading.Lock()

    def decoded(*_, **__):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.01)
        with lock:
            now[0] -= 1
        return Image.new("RGB", (2, 2))

    monkeypatch.setattr("suprank.data.images.decode_image", decoded)
    with ThreadPoolExecutor(12) as pool:
        assert all(image.found for image in pool.map(review.samples.thumbnail, range(12)))
    assert 1 <= most[0] <= 2


def test_redirects_never_go_to_the_host_header(project):
    open_branch(project, "anna")
    client = stranger(create_app(project, ["anna"], host="0.0.0.0"))
    locations = {
        path: client.get(path, headers={"host": "evil.example"}).headers.get("location") for path in ("/anna", "/anna/tree/")
    }
    assert locations == {"/anna": "/anna/", "/anna/tree/": "/anna/tree"}
    for path in ("//evil.example/", "/anna//evil.example/"):
        assert (
            "evil.example" not in client.get(path, headers={"host": "evil.example"}).headers.get("location", "").split("/")[2:3]
        )
