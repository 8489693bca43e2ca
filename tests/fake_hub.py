"""The Hugging Face Hub on a port of this machine, small: real sockets, its routes and headers, faults on demand.

The client is the real `huggingface_hub`, which `point_to(hub, ...)` sends here.
"""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

WRITE, READ = "hf_write", "hf_read"
"""Tokens: of a user "org" who may write, and of one who may only read."""

OF_THE_CLIENT = "ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning"
"""A warning that huggingface_hub's own upload gives (2.4, with httpx2), and that is nobody else's."""


@dataclass
class Repository:
    """Commits (file name → content) and branches (name → commit), as the Hub holds them."""

    private: bool = False
    gated: bool = False
    commits: dict = field(default_factory=dict)
    branches: dict = field(default_factory=dict)
    messages: list = field(default_factory=list)

    def commit(self, files, branch="main", message="", deleted=()):
        files = {**self.commits.get(self.branches.get(branch, ""), {}), **files}
        files = {name: content for name, content in files.items() if name not in deleted}
        name = hashlib.sha1(repr((len(self.commits), sorted(files.items()))).encode()).hexdigest()
        self.commits[name], self.branches[branch] = files, name
        self.messages.append(message)
        return name

    def resolve(self, revision):
        return self.branches.get(revision, revision if revision in self.commits else None)

    @property
    def files(self):
        return self.commits[self.branches["main"]]


@dataclass
class Asked:
    """A request as the server saw it."""

    method: str
    path: str
    body: bytes
    agent: str


class FakeHub:
    """Repositories by name, every request in `asked`, and `fault`s."""

    def __init__(self):
        self.repositories, self.stored, self.asked, self.faults = {}, {}, [], []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or else each answer, sent in two parts, waits 0.04 s

            def log_message(self, *args):
                pass

            def do_GET(self):
                hub._serve(self)

            def do_HEAD(self):
                hub._serve(self)

            def do_POST(self):
                hub._serve(self)

            def do_PUT(self):
                hub._serve(self)

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass  # a client that was cut off

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def add(self, repo_id, files, **about):
        """A repository with one commit; its name is returned."""
        repository = self.repositories[repo_id] = Repository(**about)
        return repository.commit(files)

    def fault(self, status, path="", times=100, method="", **headers):
        """Answer requests whose path matches with this status, or, if it is a function, by calling it with the handler."""
        self.faults.append([re.compile(path), method, status, times, headers])

    def paths(self, part=""):
        return [one.path for one in self.asked if part in one.path]

    # One request

    def _serve(self, handler):
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(handler.path).path)
        self.asked.append(Asked(handler.command, path, body, handler.headers.get("User-Agent", "")))
        for fault in self.faults:
            pattern, method, status, times, headers = fault
            if times and pattern.search(path) and method in ("", handler.command):
                fault[3] -= 1
                if callable(status):
                    status(handler)
                else:
                    self._send(handler, status, {"error": f"fault {status}"}, **headers)
                return
        for method, pattern, answer in self._routes():
            if (match := re.fullmatch(pattern, path)) and handler.command in method:
                answer(handler, body, *match.groups())
                return
        self._send(handler, 404, {"error": "not found"})

    def _routes(self):
        repo = r"([\w.-]+/[\w.-]+)"
        any_repo = r"((?:datasets/)?[\w.-]+/[\w.-]+)"  # a dataset is stored under its name with the prefix
        return [
            ("GET", "/api/whoami-v2", self._whoami),
            ("POST", "/api/repos/create", self._create),
            ("POST", "/api/validate-yaml", self._validate),
            ("GET", f"/api/models/{repo}/refs", self._refs),
            ("POST", f"/api/models/{repo}/branch/(.+)", self._branch),
            ("POST", f"/api/models/{repo}/preupload/(.+)", self._preupload),
            ("POST", f"/api/models/{repo}/commit/(.+)", self._commit),
            ("POST", f"/{repo}.git/info/lfs/objects/batch", self._batch),
            ("PUT", "/lfs/([0-9a-f]+)", self._store),
            ("POST", "/lfs/verify", lambda handler, body: self._send(handler, 200, {})),
            ("GET", f"/api/(?:models/)?{any_repo}(?:/revision/(.+))?", self._info),
            ("GET", f"/api/(?:models/)?{any_repo}/tree/([^/]+)(?:/(.+))?", self._tree),
            ("POST", f"/api/{any_repo}/paths-info/([^/]+)", self._paths_info),
            ("GET HEAD", rf"/{any_repo}/resolve/(refs/pr/\d+|[^/]+)/(.+)", self._resolve),
        ]

    def _send(self, handler, status, body, **headers):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content)

    def _token(self, handler):
        return handler.headers.get("Authorization", "").removeprefix("Bearer ")

    def _writable(self, handler):
        token = self._token(handler)
        if token != WRITE:
            message = "Invalid username or password." if not token else "You don't have the rights to write here"
            self._send(handler, 403 if token else 401, {"error": message}, X_Error_Message=message)
        return token == WRITE

    def _found(self, handler, repo_id):
        """The repository, if the caller may see it; else the answer is sent."""
        repository, token = self.repositories.get(repo_id), self._token(handler)
        if token not in ("", WRITE, READ):
            message = "Invalid credentials in Authorization header"
            self._send(handler, 401, {"error": message}, X_Error_Message=message)
        elif repository is None or (repository.private and token != WRITE):
            self._send(handler, 404 if token else 401, {"error": "not found"}, X_Error_Code="RepoNotFound")
        elif repository.gated and token != WRITE and "/resolve/" in handler.path:
            self._send(handler, 403, {"error": "gated"}, X_Error_Code="GatedRepo")
        else:
            return repository
        return None

    # Writing

    def _whoami(self, handler, body):
        known = {WRITE: ("org", "write"), READ: ("reader", "read")}.get(self._token(handler))
        if known is None:
            self._send(handler, 401, {"error": "Invalid username or password."})
        else:
            token = {"displayName": "laptop", "role": known[1]}
            self._send(handler, 200, {"type": "user", "name": known[0], "auth": {"type": "access_token", "accessToken": token}})

    def _create(self, handler, body):
        asked = json.loads(body)
        repo_id = f"{asked.get('organization') or 'org'}/{asked['name']}"
        if not self._writable(handler):
            return
        known = repo_id in self.repositories
        if not known:
            repository = Repository(private=asked.get("private") or asked.get("visibility") == "private")
            self.repositories[repo_id] = repository
            repository.commit({".gitattributes": b"*.safetensors filter=lfs"}, message="initial commit")
        answer = {"url": f"{self.url}/{repo_id}", "name": repo_id, "id": repo_id}
        self._send(
            handler, 409 if known else 200, {**answer, "error": "You already created this model repo"} if known else answer
        )

    def _validate(self, handler, body):
        """The real Hub checks the metadata of a card; so that this means something, it must at least be YAML."""
        content = json.loads(body)["content"]
        found = re.match(r"---\n(.*?)\n---\n", content, re.DOTALL)
        metadata = yaml.safe_load(found[1]) if found else None
        problems = [] if isinstance(metadata, dict) else [{"message": "no metadata"}]
        self._send(handler, 400 if problems else 200, {"errors": problems, "warnings": []})

    def _branch(self, handler, body, repo_id, branch):
        repository = self._found(handler, repo_id)
        if repository is not None and self._writable(handler):
            known = branch in repository.branches
            repository.branches.setdefault(branch, repository.branches["main"])
            self._send(handler, 409 if known else 200, {})

    def _preupload(self, handler, body, repo_id, revision):
        repository = self._found(handler, repo_id)
        if repository is None or not self._writable(handler):
            return
        if repository.resolve(revision) is None:
            self._send(handler, 404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
            return
        modes = [
            {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith((".safetensors", ".png")) else "regular"}
            for file in json.loads(body)["files"]
        ]
        self._send(handler, 200, {"files": [{**mode, "shouldIgnore": False, "oid": None} for mode in modes]})

    def _batch(self, handler, body, repo_id):
        objects = []
        for wanted in json.loads(body)["objects"]:
            actions = {"upload": {"href": f"{self.url}/lfs/{wanted['oid']}"}, "verify": {"href": f"{self.url}/lfs/verify"}}
            objects.append({**wanted, **({} if wanted["oid"] in self.stored else {"actions": actions})})
        answer = json.dumps({"transfer": "basic", "objects": objects}).encode()
        self._send(handler, 200, answer, Content_Type="application/vnd.git-lfs+json")

    def _store(self, handler, body, oid):
        assert hashlib.sha256(body).hexdigest() == oid
        self.stored[oid] = body
        self._send(handler, 200, b"")

    def _commit(self, handler, body, repo_id, revision):
        repository = self._found(handler, repo_id)
        if repository is None or not self._writable(handler):
            return
        lines = [json.loads(line) for line in body.splitlines()]
        files = {one["value"]["path"]: base64.b64decode(one["value"]["content"]) for one in lines if one["key"] == "file"}
        files |= {one["value"]["path"]: self.stored[one["value"]["oid"]] for one in lines if one["key"] == "lfsFile"}
        deleted = [one["value"]["path"] for one in lines if one["key"] == "deletedFile"]
        request = "create_pr=1" in handler.path
        if request:
            repository.branches["refs/pr/1"] = repository.branches[revision]
        commit = repository.commit(files, "refs/pr/1" if request else revision, lines[0]["value"]["summary"], deleted)
        answer = {"commitUrl": f"{self.url}/{repo_id}/commit/{commit}", "commitOid": commit}
        self._send(handler, 200, {**answer, "pullRequestUrl": f"{self.url}/{repo_id}/discussions/1"} if request else answer)

    # Reading

    def _info(self, handler, body, repo_id, revision):
        repository = self._found(handler, repo_id)
        if repository is None:
            return
        commit = repository.resolve(revision or "main")
        if commit is None:
            self._send(handler, 404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
            return
        siblings = [{"rfilename": name} for name in repository.commits[commit]]
        about = {"id": repo_id, "modelId": repo_id, "sha": commit, "private": repository.private, "tags": [], "downloads": 0}
        self._send(handler, 200, {**about, "siblings": siblings})

    def _tree(self, handler, body, repo_id, revision, folder):
        """The files and folders in a folder, and with `recursive` those below."""
        repository = self._found(handler, repo_id)
        if repository is None:
            return
        commit = repository.resolve(revision)
        below = f"{folder}/" if folder else ""
        inside = [name for name in repository.commits[commit] if name.startswith(below)]
        if folder and not inside:
            self._send(handler, 404, {"error": "no such folder"}, X_Error_Code="EntryNotFound")
            return
        recursive = "recursive=true" in handler.path.lower()
        direct = [name for name in inside if recursive or "/" not in name[len(below) :]]
        folders = dict.fromkeys(below + name[len(below) :].split("/")[0] for name in inside if "/" in name[len(below) :])
        self._send(handler, 200, [self._entry(repository, commit, name) for name in [*folders, *direct]])

    def _paths_info(self, handler, body, repo_id, commit):
        repository = self._found(handler, repo_id)
        if repository is not None:
            wanted = json.loads(body)["paths"] if body.startswith(b"{") else parse_qs(body.decode()).get("paths", [])
            known = [one for one in wanted if any(f"{name}/".startswith(f"{one}/") for name in repository.commits[commit])]
            self._send(handler, 200, [self._entry(repository, commit, one) for one in known])

    def _entry(self, repository, commit, path):
        content = repository.commits[commit].get(path)
        oid = hashlib.sha1(content or path.encode()).hexdigest()
        kind = {"type": "directory"} if content is None else {"type": "file", "size": len(content)}
        return {"path": path, "oid": oid, **kind}

    def _refs(self, handler, body, repo_id):
        repository = self._found(handler, repo_id)
        if repository is not None:
            branches = [
                {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit}
                for name, commit in repository.branches.items()
            ]
            self._send(handler, 200, {"branches": branches, "tags": [], "converts": []})

    def _resolve(self, handler, body, repo_id, revision, name):
        repository = self._found(handler, repo_id)
        if repository is None:
            return
        commit = repository.resolve(revision)
        if commit is None:
            self._send(handler, 404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        elif name not in repository.commits[commit]:
            self._send(handler, 404, b"Entry not found", X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        else:
            content = repository.commits[commit][name]
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            first = int((handler.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
            self._send(handler, 206 if first else 200, content[first:], ETag=etag, X_Repo_Commit=commit)


@contextmanager
def serving():
    """A hub that runs until the end of the block."""
    hub = FakeHub()
    thread = threading.Thread(target=hub.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()


def point_to(hub, cache, monkeypatch, token=WRITE):
    """Let huggingface_hub, and timm through it, use this hub and an empty cache. Retries do not wait."""
    from huggingface_hub import constants, file_download
    from huggingface_hub.utils import _http

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for module in (_http, file_download):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda seconds: None, time=lambda: 0.0))
    if token is None:
        monkeypatch.delenv("HF_TOKEN", raising=False)
    else:
        monkeypatch.setenv("HF_TOKEN", token)


def variables(hub, cache, token=WRITE):
    """The same for a process of its own, as environment variables."""
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": token}
