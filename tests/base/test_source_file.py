"""A file that is written is whole and on the disk, or as before."""

import contextlib

from pause_jax.base.source_file import written
from tests.support.disk import Disk


def write(path, content):
    with written(path) as file:
        file.write(content)


def test_crash_during_write_leaves_old_or_new_file(tmp_path):
    with Disk(tmp_path / "whole").watched() as disk:
        (tmp_path / "whole").mkdir()
        write(tmp_path / "whole" / "a", b"new")
    names = [change.split()[0] for change in disk.changes]
    assert names == ["mkdir", "open", "write", "fsync", "replace"]
    for number in range(1, len(names)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a").write_bytes(b"old")
        with Disk(folder, number - 1).watched(), contextlib.suppress(OSError):
            write(folder / "a", b"new")
        assert (folder / "a").read_bytes() == b"old", names[number]
        write(folder / "a", b"new")
        assert (folder / "a").read_bytes() == b"new"
