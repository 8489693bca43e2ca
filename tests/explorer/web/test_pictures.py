"""Pictures of rows, through the page."""

from PIL import Image

from tests.explorer.web import drawn
from tests.explorer.web.conftest import client_of


def test_a_missing_or_damaged_picture_is_drawn_and_comes_back(tmp_path):
    images = drawn.manifest(tmp_path, each=1)
    client = client_of(drawn.explorer(images))
    file = tmp_path / images.paths[0].as_py()
    file.write_bytes(b"\xff\xd8\xff nothing of a picture")
    answer = client.get("/picture/small/a/gallery/0")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "image/svg+xml")
    Image.new("RGB", (8, 8), "red").save(file, "PNG")
    assert client.get("/picture/small/a/gallery/0").status_code == 200
