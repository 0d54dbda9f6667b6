"""Small files in the formats of public sources, written from their documentation or source.

FedScale: ``benchmark/dataset/data/device_info/README.md`` of SymbioticLab/FedScale. LEAF:
``data/femnist/preprocess/data_to_json.py`` and ``data/shakespeare/preprocess/shake_utils.py`` of
TalwalkarLab/leaf.
"""

from __future__ import annotations

import json
import pathlib
import pickle
from typing import Any

import numpy as np


def fedscale(folder: pathlib.Path, clients: int = 6) -> None:
    """``client_device_capacity`` and ``client_behave_trace`` of clients 1, 2, ..."""
    capacity = {
        k: {"computation": 20.0 * k, "communication": 1000.0 * k} for k in range(1, clients + 1)
    }
    (folder / "client_device_capacity").write_bytes(pickle.dumps(capacity))
    behaviour = {
        k: {
            "duration": 211_625,
            "inactive": [100 + k, 150_000, 200_000],
            "finish_time": 518_400,
            "active": [10, 200 + k, 200_000],
            "model": "CPH1801",
        }
        for k in range(4)
    }
    # Clients of the page on this file: some are observed for less than six days.
    behaviour[3]["finish_time"] = 259_200
    behaviour[4] = behaviour[0] | {"active": [], "inactive": []}
    (folder / "client_behave_trace").write_bytes(pickle.dumps(behaviour))


def images(writers: int = 4, samples: int = 5) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pixels 0 to 255 [n, 784], and labels, of writers that each write two letters only."""
    rng = np.random.default_rng(0)
    found = {}
    for k in range(writers):
        labels = rng.choice([2 * k, 2 * k + 1], samples)
        pixels = rng.integers(0, 60, (samples, 28, 28))
        # Letter l is a line across the image.
        pixels[np.arange(samples), 2 + labels] = 255
        found[f"f{k:04d}_14"] = pixels.reshape(samples, 784), labels
    return found


def leaf(path: pathlib.Path, user_data: dict[str, Any]) -> None:
    """A JSON file of LEAF: x and y of each user."""
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(data["y"]) for data in user_data.values()]
    content = {"users": list(user_data), "num_samples": counts, "user_data": user_data}
    path.write_text(json.dumps(content))


def femnist(folder: pathlib.Path, **sizes: int) -> None:
    """The folders ``train`` and ``test``, the second with the last two samples of each writer."""
    found = {
        user: {"x": (x / 255).tolist(), "y": y.tolist()} for user, (x, y) in images(**sizes).items()
    }
    for split, part in (("train", slice(None, -2)), ("test", slice(-2, None))):
        halves = {u: {"x": d["x"][part], "y": d["y"][part]} for u, d in found.items()}
        users = list(halves)
        for place, names in enumerate((users[:1], users[1:])):
            name = f"all_data_{place}_niid_0_keep_0_{split}_9.json"
            leaf(folder / split / name, {user: halves[user] for user in names})
