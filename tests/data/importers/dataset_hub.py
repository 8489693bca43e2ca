"""A dataset repository of the Hugging Face Hub on a port of this machine, for the real client of `huggingface_hub`."""

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit


class DatasetHub:
    """One repository: `branches` maps revisions to files (name → content). Requests are in `requests`."""

    def __init__(self, name, **branches):
        self.name, self.branches, self.requests, self.gated = name, branches, [], False
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                hub.answer(self)

            do_HEAD = do_GET  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def commit(self, revision):
        """A hash for each branch, which is a revision too."""
        commits = {hashlib.sha1(name.encode()).hexdigest(): name for name in self.branches}
        known = commits | {name: name for name in self.branches}
        return next((sha for sha, name in commits.items() if name == known.get(revision)), None)

    def files(self, commit):
        return next(files for name, files in self.branches.items() if self.commit(name) == commit)

    def answer(self, handler):
        path = unquote(urlsplit(handler.path).path)
        self.requests.append((handler.command, path))
        for pattern, reply in (
            (rf"/api/datasets/{self.name}(?:/revision/(.+))?", self.info),
            (rf"/api/datasets/{self.name}/tree/([^/]+)", self.tree),
            (rf"/datasets/{self.name}/resolve/([^/]+)/(.+)", self.resolve),
        ):
            found = re.fullmatch(pattern, path)
            if found:
                if self.gated:
                    return self.send(handler, 403, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
                commit = self.commit(found[1] or "main")
                if commit is None:
                    return self.send(handler, 404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
                return reply(handler, commit, *found.groups()[1:])
        return self.send(handler, 401, {"error": "not found"}, {"X-Error-Code": "RepoNotFound"})

    def info(self, handler, commit):
        self.send(handler, 200, {"id": self.name, "sha": commit, "siblings": [], "private": False, "tags": [], "downloads": 0})

    def tree(self, handler, commit):
        files = self.files(commit).items()
        self.send(
            handler, 200, [{"type": "file", "path": n, "size": len(c), "oid": hashlib.sha1(c).hexdigest()} for n, c in files]
        )

    def resolve(self, handler, commit, name):
        content = self.files(commit)[name]
        first = int((handler.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": commit}
        self.send(handler, 206 if first else 200, content[first:], headers)

    def send(self, handler, status, body, headers=()):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **dict(headers)}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content)


@contextmanager
def serving(cache, monkeypatch, name, branches):
    """The hub until the end of the block, for huggingface_hub with an empty cache; retries do not wait."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    hub = DatasetHub(name, **branches)
    thread = threading.Thread(target=hub.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    with monkeypatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(_http, "time", SimpleNamespace(sleep=lambda seconds: None, time=lambda: 0.0))
        patch.delenv("HF_TOKEN", raising=False)
        try:
            yield hub
        finally:
            hub.server.shutdown()
            hub.server.server_close()
            thread.join()
