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
from urllib.parse import parse_qsl, urlsplit

MOST = 50
CATEGORY_ITEM = "Q4167836"


@dataclass
class Asked:
    """A request as the server saw it."""

    number: int
    path: str
    form: dict
    agent: str
    method: str
    at: float

    @property
    def keys(self):
        return (self.form.get("titles") or self.form.get("ids") or self.form.get("letitle") or "").split("|")


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
    snak = {"snaktype": snaktype, "property": "P31", "hash": "0", "datatype": "wikibase-item"}
    if snaktype == "value":
        snak["datavalue"] = {"type": "wikibase-entityid", "value": {"entity-type": "item", "id": value}}
    ends = [
        {"snaktype": "value", "property": "P582", "datavalue": {"type": "time", "value": {"time": "+1954-00-00T00:00:00Z"}}}
    ]
    return {
        "mainsnak": snak,
        "type": "statement",
        "rank": rank,
        "references": [],
        **({"qualifiers": {"P582": ends}} if ended else {}),
    }


class FakeWikimedia:
    """Serves a world at `commons` and `wikidata`, remembers every request in `asked`, and lets `fault`s happen."""

    def __init__(self, world, page_parts=None):
        self.world, self.page_parts = world, page_parts
        self.asked, self.faults = [], []
        self.after = lambda asked: None
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def do_GET(self):
                fake._serve(self, dict(parse_qsl(urlsplit(self.path).query)))

            def do_POST(self):
                fake._serve(self, dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode())))

        class Server(ThreadingHTTPServer):
            def handle_error(self, request, client_address):
                pass  # a client that was killed, or timed out

        self.server = Server(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server.server_port}"
        self.commons, self.wikidata = f"{self.base}/commons/api.php", f"{self.base}/wikidata/api.php"

    @property
    def options(self):
        """Of the command line."""
        return ("--commons", self.commons, "--wikidata", self.wikidata)

    def fault(self, what, when=lambda asked: True, times=1):
        """Let `what(handler, body)` answer the next requests that `when` is true of."""
        self.faults.append([when, what, times])

    def _serve(self, handler, form):
        asked = Asked(
            len(self.asked) + 1,
            urlsplit(handler.path).path,
            form,
            handler.headers.get("User-Agent", ""),
            handler.command,
            time.monotonic(),
        )
        self.asked.append(asked)
        try:
            body = json.dumps(self._reply(asked), ensure_ascii=False).encode()
            for fault in self.faults:
                if fault[2] and fault[0](asked):
                    fault[2] -= 1
                    fault[1](handler, body)
                    return
            if not re.fullmatch(r"suprank/\S+ \([^()]+\) httpx2/\S+", asked.agent):
                refuse_agent(handler, body)
                return
            assert form["format"] == "json"
            assert form["maxlag"] == "5"
            send(handler, body)
        finally:
            self.after(asked)

    def _reply(self, asked):
        form, keys = asked.form, asked.keys
        if len(keys) > MOST:
            return {"error": {"code": "toomanyvalues", "info": "Too many values", "limit": MOST}}
        if asked.path.startswith("/commons"):
            if form["action"] == "query" and form.get("list") == "logevents":
                return self._log(keys[0])
            assert (form["prop"], form["ppprop"], form["redirects"], form["formatversion"]) == (
                "pageprops",
                "wikibase_item",
                "1",
                "2",
            )
            assert asked.method == "POST"
            return self._pages(keys, form)
        assert form["action"] == "wbgetentities"
        if bad := [key for key in keys if not re.fullmatch(r"Q[1-9][0-9]*", key) or key in self.world.names.get("bad", ())]:
            return {"error": {"code": "no-such-entity", "info": f"Could not find an entity {bad[0]}", "id": bad[0]}}
        return {"entities": {key: self._entity(key, form) for key in keys}, "success": 1}

    def _log(self, title):
        target = self.world.moves.get(title)
        entry = {"logid": 1, "title": title, "type": "move", "params": {"target_ns": 14, "target_title": target}}
        return {"batchcomplete": True, "query": {"logevents": [entry] if target else []}}

    def _pages(self, titles, form):
        world = self.world
        normalized, redirects, pages = [], [], {}
        for title in titles:
            there = world.spelled.get(title, title)
            if there != title:
                normalized.append({"fromencoded": False, "from": title, "to": there})
            hops = 0
            while there in world.redirects and hops < 10:
                entry = {"from": there, "to": world.redirects[there]}
                if entry not in redirects:
                    redirects.append(entry)
                there = world.redirects[there]
                hops += 1
            if hops < 10:
                pages[there] = self._page(there)
        listed = sorted(pages.values(), key=lambda page: page["title"])  # not the order that was asked for
        reply = {"batchcomplete": True, "query": {"pages": listed}}
        reply["query"] |= {name: rows for name, rows in (("normalized", normalized), ("redirects", redirects)) if rows}
        if self.page_parts is None:
            return reply
        # As large replies come: all pages in each part, and the properties of some.
        start = int(form.get("ppcontinue", 0))
        for page in listed[:start] + listed[start + self.page_parts :]:
            page.pop("pageprops", None)
        if start + self.page_parts < len(listed):
            del reply["batchcomplete"]
            reply["continue"] = {"ppcontinue": str(start + self.page_parts), "continue": "||"}
        return reply

    def _page(self, title):
        found = self.world.pages.get(title, {"missing": True})
        if isinstance(found, dict):
            return {"ns": 14, "title": title, **found}
        page = {"pageid": 1, "ns": 14, "title": title}
        return page if found is None else {**page, "pageprops": {"wikibase_item": found}}

    def _entity(self, asked, form):
        qid = self.world.merged.get(asked, asked)
        if qid not in self.world.items and qid not in self.world.names:
            return {"id": asked, "missing": ""}
        claims = {
            name: [value if isinstance(value, dict) else claim(value) for value in values]
            for name, values in self.world.items.get(qid, {}).items()
        }
        entity = {"pageid": 1, "ns": 0, "title": qid, "lastrevid": 7, "type": "item", "id": qid, "claims": claims or []}
        if qid != asked:
            entity["redirects"] = {"from": asked, "to": qid}
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


def send(handler, body, status=200, kind="application/json; charset=utf-8", headers=(), length=None):
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    for name, value in dict(headers).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def status(code, body=b"<html><h1>busy</h1></html>", **headers):
    """A page for people, and a status."""
    return lambda handler, _: send(
        handler, body, code, "text/html", {name.replace("_", "-"): it for name, it in headers.items()}
    )


def api_error(code, info="", **headers):
    """An error as the API says it: with status 200."""
    body = json.dumps({"error": {"code": code, "info": info, "host": "db1", "lag": 7}}).encode()
    return lambda handler, _: send(handler, body, headers={name.replace("_", "-"): it for name, it in headers.items()})


def html_as_success(handler, body):
    send(handler, b"<!DOCTYPE html><title>Wikimedia Error</title>", kind="text/html; charset=utf-8")


def html_as_json(handler, body):
    send(handler, b"<!DOCTYPE html><title>Wikimedia Error</title>")


def cut_json(handler, body):
    """Whole as HTTP goes, half as JSON does."""
    send(handler, body[: len(body) // 2])


def reset(handler, body):
    """The connection is reset in the middle of the body."""
    send(handler, body[: len(body) // 2], length=len(body))
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def other_shape(handler, body):
    send(handler, b'{"batchcomplete": true, "query": {"pages": []}, "entities": {}}')


def slow(seconds):
    def late(handler, body):
        time.sleep(seconds)
        send(handler, body)

    return late


def refuse_agent(handler, body):
    said = b"Please set a user-agent and respect our robot policy https://w.wiki/4wJS. See also T400119.\n"
    send(handler, said, 403, "text/plain")
