"""Commons and Wikidata on a port of this machine, small and scripted: real sockets, true shapes, faults on demand."""

import json
import re
import socket
import struct
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

from suprank.hierarchy.project import Project
from suprank.hierarchy.recipe import read_recipe
from suprank.hierarchy.wikimedia.lookup import look_up_types

CATEGORY_ITEM = "Q4167836"
SITE = "http://commons.wikimedia.org/wiki/"


@dataclass
class World:
    """What the fake wikis hold. An item: property → list of values, each a QID or a whole claim (see `claim`)."""

    pages: dict = field(default_factory=dict)  # title → QID, None where it has no item, or a dict that is the page
    spelled: dict = field(default_factory=dict)
    redirects: dict = field(default_factory=dict)
    items: dict = field(default_factory=dict)
    merged: dict = field(default_factory=dict)
    names: dict = field(default_factory=dict)  # QID → language → text
    moves: dict = field(default_factory=dict)


def claim(value, rank="normal", ended=False, snaktype="value"):
    snak = {"snaktype": snaktype, "property": "P31"}
    if snaktype == "value":
        snak["datavalue"] = {"type": "wikibase-entityid", "value": {"entity-type": "item", "id": value}}
    ends = {"P582": [{"snaktype": "value", "property": "P582", "datavalue": {"type": "time", "value": {}}}]}
    return {"mainsnak": snak, "type": "statement", "rank": rank, "qualifiers": ends if ended else {}}


@dataclass
class Request:
    """A request as the server saw it."""

    number: int
    path: str
    form: dict
    agent: str
    at: float

    @property
    def keys(self):
        return (self.form.get("titles") or self.form.get("ids") or self.form.get("letitle")).split("|")


class FakeWikimedia:
    """Serves a world, remembers every request in `requests`, and lets `fault`s happen."""

    def __init__(self, world, page_parts=1000):
        self.world, self.page_parts, self.requests, self.faults = world, page_parts, [], []
        self.most, self.bad = 50, ()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_POST(self):
                fake._serve(self, dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode())))

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda request, address: None  # a client that was killed, or timed out
        self.base = f"http://127.0.0.1:{self.server.server_port}"

    @property
    def values(self):
        """Of the recipe: where we ask, and that we are in a hurry."""
        return [f"scrape.commons={self.base}/commons", f"scrape.wikidata={self.base}/wikidata", "scrape.rate=1000000"]

    def fault(self, what, when=lambda request: True, times=1):
        """Let `what(handler, body)` answer the next requests that `when` is true of."""
        self.faults.append([when, what, times])

    def _serve(self, handler, form):
        request = Request(len(self.requests) + 1, handler.path, form, handler.headers["User-Agent"], time.monotonic())
        self.requests.append(request)
        assert (form["format"], form["maxlag"]) == ("json", "5")
        body = json.dumps(self._reply(request), ensure_ascii=False).encode()
        for fault in self.faults:
            if fault[2] and fault[0](request):
                fault[2] -= 1
                fault[1](handler, body)
                return
        send(handler, body)

    def _reply(self, request):
        form, keys = request.form, request.keys
        if len(keys) > self.most:
            return {"error": {"code": "toomanyvalues", "info": "Too many values"}}
        if bad := [key for key in keys if key in self.bad]:
            return {"error": {"code": "no-such-entity", "info": f"Could not find an entity {bad[0]}", "id": bad[0]}}
        if request.path == "/wikidata":
            return {"entities": {key: self._entity(key, form) for key in keys}, "success": 1}
        if form.get("list") == "logevents":
            target = self.world.moves.get(keys[0])
            return {"query": {"logevents": [{"type": "move", "params": {"target_title": target}}] if target else []}}
        return self._pages(keys, int(form.get("ppcontinue", 0)))

    def _pages(self, titles, start):
        normalized, redirects, pages = [], [], {}
        for title in titles:
            there = self.world.spelled.get(title, title)
            if there != title:
                normalized.append({"fromencoded": False, "from": title, "to": there})
            for _ in range(10):
                if there not in self.world.redirects:
                    pages[there] = self._page(there)
                    break
                redirects.append({"from": there, "to": self.world.redirects[there]})
                there = self.world.redirects[there]
        listed = sorted(pages.values(), key=lambda page: page["title"])  # not the order that was asked for
        reply = {"query": {"pages": listed, "normalized": normalized, "redirects": redirects}}
        # As large replies come: all pages in each part, and the properties of some.
        for page in listed[:start] + listed[start + self.page_parts :]:
            page.pop("pageprops", None)
        if start + self.page_parts < len(listed):
            reply["continue"] = {"ppcontinue": str(start + self.page_parts), "continue": "||"}
        return reply

    def _page(self, title):
        found = self.world.pages.get(title, {"missing": True})
        if isinstance(found, dict):
            return {"ns": 14, "title": title, **found}
        return {"ns": 14, "title": title, **({} if found is None else {"pageprops": {"wikibase_item": found}})}

    def _entity(self, wanted, form):
        qid = self.world.merged.get(wanted, wanted)
        if qid not in self.world.items and qid not in self.world.names:
            return {"id": wanted, "missing": ""}
        claims = {
            name: [value if isinstance(value, dict) else claim(value) for value in values]
            for name, values in self.world.items.get(qid, {}).items()
        }
        entity = {"type": "item", "id": qid, "lastrevid": 7, "claims": claims or []}
        if "labels" in form["props"]:
            names = self.world.names.get(qid, {})
            wanted = {one: names[one] for one in form["languages"].split("|") if one in names}
            entity["labels"] = {one: {"language": one, "value": text} for one, text in wanted.items()}
            entity["descriptions"] = {one: {"language": one, "value": f"a {text}"} for one, text in wanted.items()}
        return entity


@contextmanager
def serving(world, **options):
    fake = FakeWikimedia(world, **options)
    thread = threading.Thread(target=fake.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        fake.server.shutdown()
        thread.join()
        fake.server.server_close()


def send(handler, body, status=200, kind="application/json; charset=utf-8", headers=()):
    handler.send_response(status)
    # What Wikimedia says to caches, which a cookie and another time must not make a new request of.
    wikimedia = {
        "Vary": "Accept-Encoding,Treat-as-Untrusted,X-Forwarded-Proto,Cookie,Authorization,X-Seven",
        "Cache-Control": "private, must-revalidate, max-age=0, no-store",
        "Expires": "Thu, 01 Jan 1970 00:00:00 GMT",
        "Set-Cookie": f"WMF-Last-Access={time.monotonic()}; Path=/",
    }
    for name, value in {**wikimedia, "Content-Type": kind, "Content-Length": str(len(body)), **dict(headers)}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def status(code, **headers):
    """A page for people, and a status."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler, _: send(handler, b"<html><h1>busy</h1></html>", code, "text/html", named)


def api_error(code, **headers):
    """An error as the API says it: with status 200."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = json.dumps({"error": {"code": code, "info": "of db1"}}).encode()
    return lambda handler, _: send(handler, body, headers=named)


def cut_json(handler, body):
    """Whole as HTTP goes, half as JSON does."""
    send(handler, body[: len(body) // 2])


def reset(handler, body):
    """The connection is reset in the middle of the body."""
    send(handler, body[: len(body) // 2], headers={"Content-Length": str(len(body))})
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def other_shape(handler, body):
    send(handler, b'{"query": {"pages": []}, "entities": {}}')


def slow(handler, body):
    time.sleep(1.5)
    send(handler, body)


def project_of(folder, sources):
    """A project with an item for each source."""
    made = Project.create(folder, read_recipe("hgldv2"))
    with made.transaction() as db:
        rows = [("train", str(number), source, number + 2) for number, source in enumerate(sources)]
        db.executemany("INSERT INTO item (split, key, source, line) VALUES (?, ?, ?, ?)", rows)
    return made


def look_up(project, fake, *values, **options):
    """What a person would do, who is in a hurry; `values` are further keys of the recipe."""
    from suprank.hierarchy.recipe import with_values

    recipe = with_values(project.recipe, [*fake.values, *values], ["scrape"]).scrape
    return look_up_types(project, "tester@example.org", recipe, **options)


def types(project):
    """Key → texts of its types, or the reason why it has none."""
    with project.snapshot() as db:
        found = dict(db.execute("SELECT key, reason FROM item_untyped JOIN item ON item.id = item").fetchall())
        for key, text in db.execute("SELECT key, text FROM item_type JOIN item ON item.id = item ORDER BY item, position"):
            found.setdefault(key, []).append(text)
    return found


def landmarks(count):
    """A world of so many landmarks, their addresses, and what should come out: all kinds of endings, evenly mixed."""
    world, sources, expected = World(), [], {}
    for number, name in enumerate(("church building", "lake", "castle", "bridge", "tower")):
        world.names[f"Q{100 + number}"] = {"en": name}
    for n in range(count):
        title, qid, kind = f"Category:Place {n}", f"Q{1000 + n}", f"Q{100 + n % 5}"
        sources.append(f"{SITE}Category:Place_{n}")
        expected[str(n)] = [world.names[kind]["en"]]
        world.pages[title], world.items[qid] = qid, {"P31": [kind]}
        match n % 11:
            case 0:
                del world.pages[title]
                expected[str(n)] = "missing"
            case 1:
                world.pages[title] = None
                expected[str(n)] = "no_item"
            case 2:
                world.redirects[title] = f"{title} (renamed)"
                world.pages[f"{title} (renamed)"] = world.pages.pop(title)
            case 3:
                world.items[qid] = {"P31": [CATEGORY_ITEM], "P301": [f"Q{500000 + n}"]}
                world.items[f"Q{500000 + n}"] = {"P31": [kind]}
            case 4:
                world.items[qid] = {"P31": [CATEGORY_ITEM]}
                expected[str(n)] = "category_item_without_topic"
            case 5:
                world.merged[qid] = f"Q{700000 + n}"
                world.items[world.merged[qid]] = world.items.pop(qid)
            case 6:
                world.items[qid] = {"P31": ["Q100", "Q104"]}
                expected[str(n)] = ["church building", "tower"]
    return world, sources, expected


AGENT = re.compile(r"suprank/\S+ \(tester@example\.org\) requests/\S+")
