"""What a page holds, as an HTML parser sees it."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}


@dataclass(eq=False)
class Element:
    tag: str
    attributes: dict
    text: str = ""
    above: list = field(default_factory=list)

    def get(self, name, default=None):
        return self.attributes.get(name, default)

    def within(self, **attributes):
        """Whether it stands in an element with these attributes."""
        return any(all(one.attributes.get(key) == value for key, value in attributes.items()) for one in self.above)


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.elements, self.open = [], []

    def handle_starttag(self, tag, attrs):
        if tag == "option":
            self._end_option()
        element = Element(tag, dict(attrs), above=list(self.open))
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append(Element(tag, dict(attrs), above=list(self.open)))

    def handle_endtag(self, tag):
        if tag != "option":
            self._end_option()
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def _end_option(self):
        """The next one, or the end of the list, ends an option, as HTML has it."""
        if self.open and self.open[-1].tag == "option":
            self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element.text += data


def parsed(page):
    """All elements in their order; every one that is opened is closed."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open, [element.tag for element in reader.open]
    return reader.elements


def of(elements, tag, **attributes):
    """Those of a tag, and with these attributes; `class_` is one of its classes."""
    wanted = attributes.pop("class_", None)
    return [
        one
        for one in elements
        if one.tag == tag
        and all(one.attributes.get(key) == value for key, value in attributes.items())
        and (wanted is None or wanted in (one.attributes.get("class") or "").split())
    ]
