"""A file system like an object store: whole files only, nothing is renamed or appended to, and it fails when told to."""

import threading

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Bucket(MemoryFileSystem):
    """`bucket://name`: files in memory, apart from those of `memory://`."""

    protocol = "bucket"
    store: dict = {}  # noqa: RUF012 - all instances show the same files, as in MemoryFileSystem
    pseudo_dirs: list = [""]  # noqa: RUF012
    cachable = False
    lock = threading.RLock()
    failures: list = []  # noqa: RUF012 - the next writes that fail, each by its exception
    creates_over = False  # a store that cannot create exclusively

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("bucket://", "memory://"))

    def pipe_file(self, path, value, mode="overwrite", **options):
        with self.lock:
            if self.failures:
                raise self.failures.pop()
            super().pipe_file(path, value, mode="overwrite" if self.creates_over else mode, **options)

    def mv(self, *arguments, **options):
        raise NotImplementedError("object stores rename nothing")

    def _open(self, path, mode="rb", **options):
        assert "a" not in mode
        assert "+" not in mode
        return super()._open(path, mode, **options)


fsspec.register_implementation("bucket", Bucket, clobber=True)


def empty():
    Bucket.store.clear()
    Bucket.failures.clear()
    Bucket.creates_over = False
