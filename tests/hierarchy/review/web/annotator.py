"""An annotator without a browser: reads pages, fills in their forms and sends them."""

import atexit
from dataclasses import dataclass, field
from functools import cache

from anyio.from_thread import start_blocking_portal
from starlette.testclient import TestClient

from suprank.hierarchy.review.web import create_app
from tests.explorer.report.reading import of, parsed


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
    buttons: list[tuple[str, str, str]] = field(default_factory=list)


def forms(page):
    """The forms of a page. A control that names a form by its id belongs to it, wherever it is on the page."""
    elements = parsed(page)
    found = {one: Form(one.get("id"), one.get("action", ""), one.get("method", "get")) for one in of(elements, "form")}
    for control in elements:
        owner = control.get("form")
        for element, form in found.items():
            if form.id == owner if owner else element in control.above:
                _add(form, control, [one for one in of(elements, "option") if control in one.above])
    return list(found.values())


def _add(form, control, options):
    name, value = control.get("name"), control.get("value", "")
    if control.tag == "button":
        form.buttons.append((name, value, control.text))
    elif control.get("type") == "checkbox":
        form.boxes[name, control.get("aria-label", value)] = value
        if "checked" in control.attributes:
            form.fields.append((name, value))
    elif control.tag == "input" and name:
        form.fields.append((name, value))
    elif control.tag == "textarea":
        form.fields.append((name, control.text))
    elif control.tag == "select":
        chosen = [one for one in options if "selected" in one.attributes] or options
        form.fields.append((name, chosen[0].get("value", "")))


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
        data = [(one, text) for one, text in form.fields if one not in changed]
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
        for form in forms(page):
            if form.method != "post":
                continue
            hidden = dict(form.fields).get("act")
            if hidden == button or (form.action.endswith(f"/{button}") and not form.buttons[0][0]):
                return form, None, None
            for name, value, _ in form.buttons:
                if name == "act" and value == button:
                    return form, name, value
        raise AssertionError(f"there is no button {button!r} on the page")


def selected(page):
    """The labels of the checkboxes that are checked."""
    found = next(form for form in forms(page) if form.id == "selection")
    chosen = {value for _, value in found.fields}
    return sorted(word for (name, word), value in found.boxes.items() if name in ("label", "group") and value in chosen)
