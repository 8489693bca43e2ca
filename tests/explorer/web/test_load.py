"""Fifty who ask at once, over a real port: everyone gets the answer to his own question."""

import re
from concurrent.futures import ThreadPoolExecutor

import httpx2

from suprank.explorer.web import Filters, ImageId
from tests.explorer.web import drawn
from tests.explorer.web.conftest import png, served


def test_fifty_parallel_searches_are_answered_correctly(two):
    def search(client, number):
        row, level = number % 96, number % 4
        address = f"/item/a/gallery/{row}" + (f"?level={level}" if level < 3 else "")
        answer = client.get(address)
        expected = two.searcher.neighbors(ImageId(0, "gallery", row), Filters(level if level < 3 else None))
        hits = [str(hit.image) for ranking in expected for hit in ranking.hits]
        found = re.findall(r'<a class="frame" href="/item/([ab]/gallery/\d+)', answer.text)
        return answer.status_code, found == hits

    with served(two) as address, httpx2.Client(base_url=address, timeout=60) as client, ThreadPoolExecutor(50) as people:
        answers = list(people.map(lambda number: search(client, number), range(64)))
    assert answers == [(200, True)] * 64


def test_uploads_and_pictures_at_once_do_not_mix(one):
    kinds = ["ring", "triangle", "clover", "five-pointed star"]
    pictures = {kind: png(drawn.figure(kind, 4321)) for kind in kinds}

    def upload(client, number):
        kind = kinds[number % 4]
        answer = client.post("/upload", files={"image": ("a.png", pictures[kind], "image/png")})
        first = re.search(r'<span class="label">([^<]*)<', answer.text)
        return answer.status_code, first is not None and first[1] == kind

    with served(one) as address, httpx2.Client(base_url=address, timeout=60) as client, ThreadPoolExecutor(16) as people:
        answers = list(people.map(lambda number: upload(client, number), range(24)))
    assert answers == [(200, True)] * 24
