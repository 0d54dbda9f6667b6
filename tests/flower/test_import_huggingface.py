"""Folders of Hugging Face's ``datasets`` and Flower's partitioners: the arrays that they hold.

Here and not beside the other importers, as their packages come with Flower's environment.
"""

from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from pause_jax import ConfigError, Learning, SimConfig, simulate
from pause_jax.importers import huggingface
from pause_jax.importers.request import Request
from pause_jax.learning import Dataset, Linear, Natural
from pause_jax.privacy import NoPrivacy
from tests.support.public_files import images

datasets = pytest.importorskip("datasets")

# Of the packages, not of what is done with them here.
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


def test_clients_train_with_the_samples_of_a_partitioner():
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    partitioner = partitioners.DirichletPartitioner(
        num_partitions=3, partition_by="character", alpha=1.0, min_partition_size=4, seed=1
    )
    partitioner.dataset = writers(images(samples=20))
    data = Dataset.of(**huggingface.partitioned(partitioner), test_share=0.1)
    config = SimConfig(
        num_clients=3, num_selected=2, num_rounds=3, privacy=NoPrivacy(),
        learning=Learning(partition=Natural(), model=Linear()),
    )  # fmt: skip
    result = simulate(config, jax.random.key(0), data=data)
    sizes = [len(partitioner.load_partition(k)) for k in range(3)]
    held = np.asarray(result.data_size)
    assert held.sum() == 72
    assert all(0 < kept <= size for kept, size in zip(held, sizes, strict=True))
