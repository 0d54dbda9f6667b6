"""Initial weights for runs, and model weight files."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax import Array

from pause_jax.base.archive import digest_of
from pause_jax.base.registry import require
from pause_jax.base.source_file import check_regular, written
from pause_jax.base.spelling import listed, shown
from pause_jax.base.struct import ConfigError
from pause_jax.learning.data import Arrays, read_npz
from pause_jax.learning.learner import Variables, named_leaves, path_name
from pause_jax.learning.models import Network

_GIVEN = "given:"
_SAFETENSORS = "safetensors.numpy", "safetensors", "the .safetensors format"
_RULE = "must be an .npz or .safetensors file, or an Orbax checkpoint folder"


class GivenWeights(str):
    """Weights passed in Python, represented by ``given:DIGEST`` in config files."""

    arrays: Arrays


def given_weights(start: Any) -> Any:
    """Convert nested dicts of arrays to :class:`GivenWeights`. Return other values unchanged."""
    if not isinstance(start, Mapping):
        return start
    arrays = named_leaves(jax.tree.map(np.asarray, start))
    weights = GivenWeights(_GIVEN + digest_of(arrays).tobytes().hex())
    weights.arrays = arrays
    return weights


def start_weights(start: str, missing: str, model: Variables) -> Arrays:
    """Read the weights in ``start``, keyed by leaf path, and check that they fit ``model``."""
    arrays, leaves = _read(start), named_leaves(model)
    weights = {}
    faults = [f"{name} is missing" for name in leaves if name not in arrays and missing == "error"]
    for name, array in arrays.items():
        array, leaf = np.asarray(array), leaves.get(name)
        if leaf is None:
            faults.append(f"{name} is not in the model")
        elif array.shape != leaf.shape or not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
            form = f"{leaf.dtype}{list(leaf.shape)}"
            faults.append(f"{name} is {array.dtype}{list(array.shape)} but must be {form}")
        else:
            with np.errstate(over="ignore"):
                weights[name] = array.astype(leaf.dtype)
            if not np.isfinite(weights[name]).all():
                faults.append(f"{name} is not finite")
    if faults:
        raise ConfigError(
            f"learning.start = {shown(start)}: {listed(faults, '; ')}. Correct the names and "
            "arrays, or set learning.start_missing = 'initial' to draw missing arrays."
        )
    return weights


def with_start(network: Network, weights: Mapping[str, Array]) -> Network:
    """Return the network with its initial weights replaced by ``weights``, matched by leaf path."""

    def init(key: Array, x: Array) -> Variables:
        drawn = network.init(key, x)
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: weights.get(path_name(path), leaf), drawn
        )

    return network._replace(init=init)


def save_weights(path: str | os.PathLike[str], result: Any) -> None:
    """Write the final model of a ``simulate`` result to a file for use as ``Learning(start=path)``.

    The file contains the full model, including frozen weights. Low-rank changes are merged into
    the kernels. Raises ConfigError if the result has no model or the file extension is unknown.
    """
    path = pathlib.Path(path)
    if result.variables is None or path.suffix not in (".npz", ".safetensors"):
        raise ConfigError(
            f"save_weights({str(path)!r}): must end in .npz or .safetensors, and the result must "
            "have a model."
        )
    variables = result.config.learning.trained.whole(result.variables)
    arrays = named_leaves(jax.tree.map(np.asarray, variables))
    with written(path) as file:
        if path.suffix == ".npz":
            np.savez(file, **arrays)
        else:
            file.write(require(*_SAFETENSORS).save(arrays))


def _read(start: str) -> Arrays:
    """Read ``Learning.start`` and return its arrays, keyed by leaf path."""
    if isinstance(start, GivenWeights):
        return start.arrays
    path = pathlib.Path(start).expanduser()
    try:
        if start.startswith(_GIVEN):
            raise ConfigError("was passed in Python and is not in a file. Pass the weights again.")
        if path.is_dir():
            return named_leaves(_orbax(path.absolute()))
        check_regular("file", path)
        if path.suffix == ".npz":
            return named_leaves(read_npz(path))
        if path.suffix == ".safetensors":
            return named_leaves(require(*_SAFETENSORS).load_file(path))
        raise ConfigError(f"{_RULE}.")
    except ConfigError as error:
        raise ConfigError(f"learning.start = {shown(start)}: {error}") from None
    except Exception as error:  # the readers raise many exception types for invalid files
        raise ConfigError(f"learning.start = {shown(start)}: {_RULE} ({error}).") from None


def _orbax(folder: pathlib.Path) -> Any:
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as reader:
        tree = reader.metadata(folder).item_metadata.tree
        # Restore as NumPy arrays, because the devices that held the arrays may be unavailable.
        kinds = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        return reader.restore(folder, restore_args=kinds)
