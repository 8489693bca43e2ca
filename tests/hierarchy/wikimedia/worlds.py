"""Worlds for the fake server, projects of their landmarks, and a clock that does not tick by itself."""

from suprank.hierarchy.project import Project
from suprank.hierarchy.recipe import read_recipe
from suprank.hierarchy.wikimedia.client import Client, RateLimiter
from suprank.hierarchy.wikimedia.scraping import scrape
from tests.hierarchy.wikimedia.fake_server import CATEGORY_ITEM, World

HOST = "http://commons.wikimedia.org/wiki/"


class Clock:
    """Time passes only while somebody sleeps; `slept` lists how long."""

    def __init__(self):
        self.time, self.slept = 1000.0, []

    def __call__(self):
        return self.time

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.time += seconds

    @property
    def waits(self):
        """Sleeps that were longer than the space between requests."""
        return [round(seconds, 6) for seconds in self.slept if seconds > 0.5]


def project_of(folder, sources, batch=50):
    """A project with an item for each source."""
    recipe = read_recipe("hgldv2")
    made = Project.create(folder, recipe.model_copy(update={"scrape": recipe.scrape.model_copy(update={"batch": batch})}))
    with made.transaction() as db:
        rows = [("train", str(number), source, number + 2) for number, source in enumerate(sources)]
        db.executemany("INSERT INTO item (split, key, source, line) VALUES (?, ?, ?, ?)", rows)
    return made


def client(clock=None, contact="tester@example.org", **options):
    clock = clock or Clock()
    return Client(contact, RateLimiter(180, clock=clock, sleep=clock.sleep), chance=lambda: 0.0, **options)


def run(project, fake, clock=None, client_options=None, **options):
    """A whole scrape that waits for nothing."""
    with client(clock, **(client_options or {})) as one:
        return scrape(project, one, commons=fake.commons, wikidata=fake.wikidata, **options)


def types(project):
    """Key → texts of its types, or the reason why it has none."""
    with project.snapshot() as db:
        found = dict(db.execute("SELECT key, reason FROM item_untyped JOIN item ON item.id = item").fetchall())
        for key, text in db.execute("SELECT key, text FROM item_type JOIN item ON item.id = item ORDER BY item, position"):
            found.setdefault(key, []).append(text)
    return found


def tables(project, *, queue=True):
    """All that a scrape leaves behind, but for times."""
    queries = {
        "page": "SELECT * FROM page ORDER BY title",
        "item_page": "SELECT * FROM item_page ORDER BY item",
        "entity": "SELECT * FROM entity ORDER BY qid, kind",
        "statement": "SELECT * FROM statement ORDER BY qid, property, position",
        "item_type": "SELECT * FROM item_type ORDER BY item, position",
        "item_untyped": "SELECT * FROM item_untyped ORDER BY item",
        "reply": "SELECT sha, status, body FROM reply ORDER BY sha",
        "step": "SELECT name, settings_json, inputs, result_json FROM step ORDER BY id",
    }
    if queue:
        queries["fetch_job"] = "SELECT id, kind, keys_json, state FROM fetch_job ORDER BY id"
    with project.snapshot() as db:
        return {name: [tuple(row) for row in db.execute(query)] for name, query in queries.items()}


def landmarks(count):
    """A world of so many landmarks, their addresses, and what should come out: all kinds of endings, evenly mixed."""
    world, sources, expected = World(), [], {}
    for number, name in enumerate(("church building", "lake", "castle", "bridge", "tower")):
        world.names[f"Q{100 + number}"] = {"en": name}
    for n in range(count):
        title, qid, kind = f"Category:Place {n}", f"Q{1000 + n}", f"Q{100 + n % 5}"
        sources.append(f"{HOST}Category:Place_{n}")
        ending, outcome = n % 11, [world.names[kind]["en"]]
        if ending == 2:
            world.redirects[title] = f"{title} (renamed)"
            title = world.redirects[title]
        if ending == 0:
            outcome = "missing"
        else:
            world.pages[title] = qid
            world.items[qid] = {"P31": [kind]}
        if ending == 1:
            world.pages[title] = None
            outcome = "no_item"
        elif ending == 3:
            world.items[qid] = {"P31": [CATEGORY_ITEM], "P301": [f"Q{500000 + n}"]}
            world.items[f"Q{500000 + n}"] = {"P31": [kind]}
        elif ending == 4:
            world.items[qid] = {"P31": [CATEGORY_ITEM]}
            outcome = "category_item_without_topic"
        elif ending == 5:
            world.merged[qid] = f"Q{700000 + n}"
            world.items[world.merged[qid]] = world.items.pop(qid)
        elif ending == 6:
            world.items[qid] = {"P31": ["Q100", "Q104"]}
            outcome = ["church building", "tower"]
        expected[str(n)] = outcome
    return world, sources, expected
