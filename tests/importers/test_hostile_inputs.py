"""Damaged files of other projects: each sample is imported, or the file is refused in one line."""

import json
import pickle
import pickletools

import numpy as np
import pytest

from pause_jax.importers import fedscale, leaf
from pause_jax.importers.request import Request
from pause_jax.learning import Files
from tests.support import public_files
from tests.support.hostile import mutants, outcome

pytestmark = pytest.mark.slow

NUMBERS = {
    "a": {"x": [[0.5, 1.0], [2.0, -1.0]], "y": [1, 0]},
    "f07": {"x": [[1e3, 0.25]], "y": [2]},
}
TEXTS = {"A_ROLE": {"x": ["to be", "o be "], "y": [" ", "o"]}, "B": {"x": ["tx~!9"], "y": ["e"]}}


@pytest.mark.parametrize("users", [NUMBERS, TEXTS], ids=["numbers", "texts"])
def test_damaged_leaf_file_keeps_every_sample_or_is_refused(tmp_path, users):
    path = tmp_path / "hostile.json"
    public_files.leaf(path, users)
    for damaged in mutants(path.read_bytes(), 100, seed=2):
        path.write_bytes(damaged)
        imported = outcome(lambda: leaf.read(Request((path,))), path.name, damaged)
        if imported is None:
            continue
        found = json.loads(damaged)["user_data"].values()
        assert len(imported.arrays["x"]) == sum(len(user["y"]) for user in found), damaged
        if users is NUMBERS:
            wanted = np.concatenate([np.ravel(user["x"]) for user in found])
            np.testing.assert_allclose(np.sort(imported.arrays["x"].ravel()), np.sort(wanted))


@pytest.mark.parametrize("protocol", [0, 4])
@pytest.mark.parametrize("name", ["client_device_capacity", "client_behave_trace"])
def test_damaged_fedscale_pickle_keeps_its_numbers_or_is_refused(tmp_path, name, protocol):
    public_files.fedscale(tmp_path)
    path = tmp_path / name
    content = pickle.dumps(pickle.loads(path.read_bytes()), protocol=protocol)
    for damaged in mutants(content, 70, seed=3):
        path.write_bytes(damaged)
        imported = outcome(lambda: fedscale.read(Request((path,))), name, damaged)
        if imported is None or "devices.csv" not in imported.tables:
            continue
        numbers = [arg for _, arg, _ in pickletools.genops(damaged) if isinstance(arg, int | float)]
        seconds = {f"{3 * number / 1000:.6g}" for number in numbers}
        _, *rows = map(list, imported.tables["devices.csv"])
        assert {row[1] for row in rows} <= seconds


def test_pickle_with_a_huge_memo_index_uses_no_memory(tmp_path):
    path = tmp_path / "client_device_capacity"
    path.write_bytes(b"\x80\x02}r\xff\xff\xff\x7f.")
    refused = outcome(lambda: fedscale.read(Request((path,))), "must be a complete pickle", path)
    assert refused is None


def test_damaged_archive_keeps_its_arrays_or_is_refused(tmp_path):
    path = tmp_path / "hostile.npz"
    x, y = np.arange(24.0).reshape(6, 4), np.arange(6) % 3
    np.savez(path, x=x, y=y, clients=np.asarray(list("aabbcc")), x_test=x[:2], y_test=y[:2])
    for damaged in mutants(path.read_bytes(), 100, seed=5):
        path.write_bytes(damaged)
        data = outcome(lambda: Files(path=str(path)).load(), path.name, damaged)
        if data is not None:
            np.testing.assert_array_equal(data.x_train, x)
            np.testing.assert_array_equal(data.y_train, y)
