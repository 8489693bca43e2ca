"""An annotator without a browser: reads pages, fills in their forms and sends them."""

import atexit
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser

from anyio.from_thread import start_blocking_portal
from starlette.testclient import TestClient

from suprank.hierarchy.review.web import create_app


def web_client(app, **options):
    """A client of an application. All share one event loop, because to start one takes longer than most requests."""
    client = TestClient(app, base_url="http://127.0.0.1:8000", **options)
    client.portal = _event_loop()
    return client


@cache
def _event_loop():
    loop = start_blocking_portal()
    atexit.register(loop.__exit__, None, None, None)
    return loop.__enter__()


@dataclass
class Form:
    """A form of a page: its URL, its fields with their values, and its buttons (name, value, text)."""

    id: str | None
    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    boxes: dict[tuple[str, str], str] = field(default_factory=dict)
    buttons: list[list[str]] = field(default_factory=list)


class Reader(HTMLParser):
    """The forms of a page. A control that names a form by its id belongs to it, wherever it is on the page."""

    def __init__(self, text):
        super().__init__()
        self.forms, self._inside, self._button, self._area, self._select = [], None, None, None, None
        self._waiting = []
        self.feed(text)
        for owner, put in self._waiting:
            put(next(one for one in self.forms if one.id == owner))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag == "form":
            self._inside = Form(found.get("id"), found.get("action", ""), found.get("method", "get"))
            self.forms.append(self._inside)
        elif tag == "input" and found.get("name"):
            self._put(found, lambda form: self._input(form, found))
        elif tag == "select":
            self._select = [found["name"], None]
            chosen = self._select
            self._put(found, lambda form: form.fields.append((chosen[0], chosen[1] or "")))
            if "form" not in found and self._inside is not None:  # its options come after it
                self._inside.fields.pop()
                self._inside.fields.append(chosen)
        elif tag == "option" and self._select is not None and ("selected" in found or self._select[1] is None):
            self._select[1] = found.get("value", "")
        elif tag == "textarea":
            self._area = [found["name"], ""]
        elif tag == "button" and self._known(found):
            self._button = [found.get("name"), found.get("value", ""), ""]
            button = self._button
            self._put(found, lambda form: form.buttons.append(button))

    def handle_endtag(self, tag):
        if tag == "form":
            self._inside = None
        elif tag == "select":
            self._select = None
        elif tag == "textarea":
            self._inside.fields.append(tuple(self._area))
            self._area = None
        elif tag == "button":
            self._button = None

    def handle_data(self, text):
        if self._button is not None:
            self._button[2] += text
        if self._area is not None:
            self._area[1] += text

    def _known(self, found):
        return "form" in found or self._inside is not None

    def _put(self, found, put):
        if "form" in found:
            self._waiting.append((found["form"], put))
        elif self._inside is not None:
            put(self._inside)

    @staticmethod
    def _input(form, found):
        if found.get("type") == "checkbox":
            form.boxes[found["name"], found.get("aria-label", found["value"])] = found["value"]
            if "checked" in found:
                form.fields.append((found["name"], found["value"]))
        else:
            form.fields.append((found["name"], found.get("value", "")))


class Annotator:
    """An annotator of a branch. `get` opens a page; `press` presses a button on it."""

    def __init__(self, project, branch, app=None):
        self.branch, self.prefix = branch, f"/{branch.name}"
        app = self.app = app or create_app(project, [branch.name])
        self.client = web_client(app, raise_server_exceptions=False, follow_redirects=False)
        assert self.client.get(f"{self.prefix}/enter?token={branch.token}").status_code == 303
        self.page, self.address = None, None

    def get(self, path="/", status=200):
        answer = self.client.get(self.prefix + path if not path.startswith(self.prefix) else path)
        while answer.status_code == 303:
            answer = self.client.get(answer.headers["location"])
        assert answer.status_code == status, answer.text
        self.page = answer.text
        return answer.text

    def press(self, button, checked=(), *, status=200, page=None, **fields):
        """Press the button that sends this `act`, with these fields filled in and these checkboxes checked, by their labels."""
        form, name, value = self._button(button, page or self.page)
        changed = set(fields)
        data = [(one, text) for one, text in map(tuple, form.fields) if one not in changed]
        if checked:
            data = [(one, text) for one, text in data if one not in ("label", "group")]
        data += [(one, form.boxes[one, word]) for word in checked for one in ("label", "group") if (one, word) in form.boxes]
        data += [(one, str(text)) for one, text in fields.items()] + ([(name, value)] if name else [])
        return self.send(form.action, data, status)

    def send(self, path, data, status=200):
        body = {}
        for name, value in data:
            body.setdefault(name, []).append(value)
        answer = self.client.post(path, data=body, headers={"sec-fetch-site": "same-origin"})
        self.last = answer
        while answer.status_code == 303:
            answer = self.client.get(answer.headers["location"])
        assert answer.status_code == status, answer.text
        self.page = answer.text
        return answer.text

    @staticmethod
    def _button(button, page):
        for form in Reader(page).forms:
            if form.method != "post":
                continue
            hidden = dict(map(tuple, form.fields)).get("act")
            if hidden == button or (form.action.endswith(f"/{button}") and not form.buttons[0][0]):
                return form, None, None
            for name, value, _ in form.buttons:
                if name == "act" and value == button:
                    return form, name, value
        raise AssertionError(f"there is no button {button!r} on the page")


def selected(page):
    """The labels of the checkboxes that are checked."""
    found = next(form for form in Reader(page).forms if form.id == "selection")
    chosen = {value for _, value in map(tuple, found.fields)}
    return sorted(word for (name, word), value in found.boxes.items() if name in ("label", "group") and value in chosen)
