"""Folders of Hugging Face's ``datasets``: the arrays that they hold.

Here and not beside the other importers, as its package comes with Flower's environment.
"""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from pause_jax import ConfigError
from pause_jax.importers import huggingface
from pause_jax.importers.request import Request
from tests.support.pages import block
from tests.support.public_files import images

datasets = pytest.importorskip("datasets")

# Of the package, not of what is done with it here.
pytestmark = pytest.mark.filterwarnings("ignore")


def writers(found, part=slice(None)):
    """A data set with the columns of flwrlabs/femnist."""
    rows: dict[str, list[Any]] = {"image": [], "writer_id": [], "character": []}
    for writer, (x, y) in found.items():
        rows["image"] += list(x[part].reshape(-1, 28, 28).astype(np.uint8))
        rows["character"] += y[part].tolist()
        rows["writer_id"] += [writer] * len(y[part])
    features = datasets.Features(
        image=datasets.Image(), writer_id=datasets.Value("string"),
        character=datasets.ClassLabel(num_classes=8),
    )  # fmt: skip
    return datasets.Dataset.from_dict(rows, features=features)


def test_folder_is_imported_by_client_column(tmp_path):
    found = images()
    splits = {"train": writers(found, slice(1, None)), "test": writers(found, slice(0, 1))}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "femnist")
    arrays = huggingface.read(Request((tmp_path / "femnist",))).arrays
    assert arrays["x"].dtype == np.uint8
    assert arrays["x"].shape == (16, 28, 28, 1)
    for writer, (x, y) in found.items():
        own = arrays["clients"] == writer
        np.testing.assert_array_equal(arrays["x"][own].reshape(-1, 784), x[1:])
        np.testing.assert_array_equal(arrays["y"][own], y[1:])
    assert len(arrays["x_test"]) == 4
    few = huggingface.read(Request((tmp_path / "femnist",), clients=2)).arrays
    assert len(few["x"]) == 8
    assert len(few["x_test"]) == 2
    columns = {"client": "character", "y": "writer"}
    with pytest.raises(ConfigError, match=r"has no column writer \(columns: image, writer_id, c"):
        huggingface.read(Request((tmp_path / "femnist",), columns=columns))
    with pytest.raises(ConfigError, match=r"^--columns label: must be one of x, y, client"):
        huggingface.read(Request((tmp_path / "femnist",), columns={"label": "y"}))
    with pytest.raises(ConfigError, match=r"column writer_id must contain numbers, or images"):
        huggingface.read(Request((tmp_path / "femnist",), columns={"y": "writer_id"}))


def test_palette_images_keep_their_colours(tmp_path):
    colours = np.asarray([[10, 20, 30], [200, 100, 50]], np.uint8)
    image = Image.fromarray(np.asarray([[0, 1], [1, 0]], np.uint8), mode="P")
    image.putpalette(colours.ravel().tolist())
    features = datasets.Features(
        image=datasets.Image(), label=datasets.Value("int32"), client_id=datasets.Value("string")
    )
    rows = {"image": [image] * 2, "label": [0, 1], "client_id": ["a", "b"]}
    both = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": both}).save_to_disk(tmp_path / "palette")
    columns = {"client": "client_id"}
    arrays = huggingface.read(Request((tmp_path / "palette",), columns=columns)).arrays
    np.testing.assert_array_equal(arrays["x"][0], colours[[[0, 1], [1, 0]]])


def test_invalid_folder_raises_a_one_line_error(tmp_path):
    (tmp_path / "dataset_info.json").write_text("{")
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError) as refused:
            huggingface.read(Request((path,)))
        (line,) = str(refused.value).splitlines()
        assert line.startswith(f"FILE = '{path}': must be a folder written by save_to_disk (")
    datasets.DatasetDict({"validation": writers(images())}).save_to_disk(tmp_path / "other")
    with pytest.raises(
        ConfigError, match=r"must have a split named train \(splits: validation\)\.$"
    ):
        huggingface.read(Request((tmp_path / "other",)))


class Partitioner:
    """The methods of Flower's partitioners that the guide uses."""

    num_partitions = 3

    def __init__(self, table):
        self.table = table

    def load_partition(self, k):
        return self.table.shard(self.num_partitions, k)


def test_partitions_become_clients_in_the_guide():
    found = images(samples=20)
    partitioner = Partitioner(writers(found).rename_column("character", "label"))
    names: dict[str, Any] = {"partitioner": partitioner}
    exec(block("docs/guides/public_files.md", "load_partition"), names)
    data = names["data"]
    assert data.x_train.shape[1:] == (28, 28, 1)
    held = np.concatenate([data.y_train, data.y_test])
    np.testing.assert_array_equal(np.sort(held), np.sort([y for _, y in found.values()], axis=None))
    sizes = [len(partitioner.load_partition(k)) for k in range(3)]
    assert data.client_ids == ("0", "1", "2")
    assert all(
        0 < kept <= size for kept, size in zip(np.bincount(data.clients), sizes, strict=True)
    )
