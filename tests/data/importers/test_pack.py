"""The archive of a drawn set is the same each time."""

from __future__ import annotations

import zipfile

from suprank.data.importers.pack import write_archive


def test_archives_of_equal_images_are_equal_to_the_byte(tmp_path):
    images = [("a/b.png", b"first"), ("c.png", b"second")]
    (tmp_path / "again").mkdir()
    assert write_archive(tmp_path, images) == ["images.zip::a/b.png", "images.zip::c.png"]
    write_archive(tmp_path / "again", images)
    assert (tmp_path / "images.zip").read_bytes() == (tmp_path / "again" / "images.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "images.zip") as archive:
        assert archive.read("c.png") == b"second"
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
