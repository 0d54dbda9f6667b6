"""Public data by writer or user: the arrays are those of the files, and clients keep their ids."""

import sys

import numpy as np
import pytest

from pause_jax import ConfigError
from pause_jax.importers import huggingface, leaf, samples
from pause_jax.importers.request import Request, ids_of
from tests.support import public_files


def by_client(arrays):
    """Pixels [n, 784] and labels of each client, in the order of the file."""
    x = arrays["x"].reshape(len(arrays["x"]), -1)
    return {
        str(client): (x[arrays["clients"] == client], arrays["y"][arrays["clients"] == client])
        for client in np.unique(arrays["clients"])
    }


def assert_same(found, wanted, part=slice(None)):
    assert set(found) == set(wanted)
    for client, (x, y) in wanted.items():
        np.testing.assert_array_equal(found[client][0], x[part])
        np.testing.assert_array_equal(found[client][1], y[part])


def test_leaf_femnist_round_trips(tmp_path):
    public_files.femnist(tmp_path / "femnist", samples=12)
    imported = leaf.read(Request((tmp_path / "femnist",)))
    arrays = imported.arrays
    assert arrays["x"].dtype == np.uint8
    assert arrays["x"].shape == (40, 28, 28, 1)
    assert_same(by_client(arrays), public_files.images(samples=12), slice(None, -2))
    assert len(arrays["x_test"]) == len(arrays["y_test"]) == 8
    imported.write(tmp_path / "out")
    path = str(tmp_path / "out" / "clients.npz")
    assert ids_of(path) == ("f0000_14", "f0001_14", "f0002_14", "f0003_14")


def test_sampled_users_are_independent_of_file_boundaries(tmp_path):
    users = {f"u{k}": {"x": [[float(k), 1.0]], "y": [k % 2]} for k in range(20)}
    public_files.leaf(tmp_path / "whole" / "all.json", users)
    names = list(users)
    for part in range(4):
        cut = {user: users[user] for user in names[part::4]}
        public_files.leaf(tmp_path / "cut" / f"{part}.json", cut)
    drawn = [
        set(leaf.read(Request((tmp_path / name,), clients=6, seed=seed)).arrays["clients"].tolist())
        for name, seed in (("whole", 0), ("cut", 0), ("cut", 1))
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 6


def test_leaf_shakespeare_becomes_tokens(tmp_path):
    texts = {"A_ROLE": (["to be", "o be "], [" ", "o"]), "B": (["\tx~!9"], ["é"])}
    users = {user: {"x": x, "y": y} for user, (x, y) in texts.items()}
    public_files.leaf(tmp_path / "s.json", users)
    arrays = leaf.read(Request((tmp_path / "s.json",))).arrays
    assert arrays["clients"].tolist() == ["A_ROLE", "A_ROLE", "B"]
    # Printable ASCII from 1 on, all else 0.
    read = ["".join("?" if code == 0 else chr(code + 31) for code in row) for row in arrays["x"]]
    assert read == ["to be", "o be ", "?x~!9"]
    assert arrays["y"].tolist() == [1, ord("o") - 31, 0]


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("{", "must be JSON with users, num_samples, and user_data with x and y"),
        (
            '{"users": ["a"], "user_data": {}}',
            "must be JSON with users, num_samples, and user_data with x and y",
        ),
        (
            '{"users": ["a"], "num_samples": [0], "user_data": {}}',
            "users, num_samples and user_data must list the same users",
        ),
        ({"a": {"x": [[1.0]], "y": [1, 2]}}, "'a': x and y must be lists of equal length"),
        (
            {"a": {"x": ["000001.jpg", "000002.jpg"], "y": [1, 0]}},
            "'a': x and y must be lists of equal length",
        ),
        (
            {"a": {"x": [[1.0], [2.0, 3.0]], "y": [1, 0]}},
            "'a': x and y must be lists of equal length",
        ),
        (
            {"a": {"x": [[1.0]], "y": [1]}, "b": {"x": [[1.0, 2.0]], "y": [1]}},
            "samples of client 'b' differ in shape or dtype",
        ),
        ({"a": {"x": [], "y": []}}, "must have at least one client with training samples"),
        ({"a": {"x": [[1.0]], "y": [2**32 + 5]}}, "'a': x and y must be lists of equal length"),
        (
            '{"users": ["a"], "num_samples": [3], "user_data": {"a": {"x": [[1.0]], "y": [1]}}}',
            "user 'a' has 1 samples, but num_samples is 3",
        ),
        ({"a": {"x": [[1.0], [None]], "y": [1, 2]}}, "client 'a' has a value that is not finite"),
        ({"a\0": {"x": [[1.0]], "y": [1]}}, "client 'a\\x00': a client id must be a whole number"),
        ({"-1": {"x": [[1.0]], "y": [1]}}, "client '-1': a client id must be a whole number"),
    ],
)
def test_damaged_leaf_file_gives_a_one_line_error(tmp_path, content, rule):
    path = tmp_path / "file.json"
    if isinstance(content, str):
        path.write_text(content)
    else:
        public_files.leaf(path, content)
    with pytest.raises(ConfigError) as refused:
        leaf.read(Request((path,)))
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"FILE = '{path}': {rule}")


def test_client_without_training_samples_is_skipped(tmp_path):
    def part(number):
        return np.zeros((number, 2), np.float32), np.zeros(number, np.int32)

    train, test = {"a": part(3), "b": part(0)}, {"a": part(1), "b": part(2)}
    _, arrays, notes = samples.imported(tmp_path, train, test)
    assert (len(arrays["x"]), len(arrays["x_test"])) == (3, 1)
    assert "Skipped clients with only test samples: 1." in notes


def test_user_in_two_files_is_refused(tmp_path):
    for split, number in (("train", 9), ("test", 1)):
        (tmp_path / split).mkdir()
        one = {"x": [[1.0]] * number, "y": [1] * number}
        public_files.leaf(tmp_path / split / "all.json", {"a": one})
    with pytest.raises(ConfigError, match="user 'a' is also in an earlier file"):
        leaf.read(Request((tmp_path / "train", tmp_path / "test")))
    arrays = leaf.read(Request((tmp_path,))).arrays
    assert (len(arrays["x"]), len(arrays["x_test"])) == (9, 1)


def test_missing_package_gives_a_one_line_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"Run pip install 'pause_jax\[huggingface\]'\.$"):
        huggingface.read(Request((tmp_path,)))
