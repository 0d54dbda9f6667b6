"""Weights that runs start from, in files and as arrays, and weights saved from a result."""

import functools
import importlib.util
import pathlib
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import ConfigError, config_file, simulate, sweep
from pause_jax.learning import Lora, Mlp, save_weights
from pause_jax.learning.learner import named_leaves
from pause_jax.learning.start import GivenWeights
from pause_jax.rng import keys
from pause_jax.run.programs import ROOMS, program_spec
from pause_jax.run.record.result import chosen
from tests.learning.test_custom_model import LINEN_NORM
from tests.support.hostile import damaged
from tests.support.learners import DATA, KEY, config, learning

pytestmark = pytest.mark.slow

MISSING = importlib.util.find_spec("safetensors") is None
SAFETENSORS = pytest.param(".safetensors", marks=pytest.mark.skipif(MISSING, reason="no package"))
LORA = Lora(rank=2, scale=0.5)
RNG = np.random.default_rng(1)
SHAPES = {
    "hidden_0/kernel": (5, 4), "hidden_0/bias": (4,), "output/kernel": (4, 3), "output/bias": (3,),
}  # fmt: skip
WEIGHTS = {name: RNG.standard_normal(shape).astype("f") for name, shape in SHAPES.items()}


def nested(arrays):
    tree: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        layer, leaf = name.split("/")
        tree.setdefault(layer, {})[leaf] = array
    return tree


def initial(start, key=KEY, **changes):
    """Variables before round 1."""
    setting = learning(start=start, **changes)
    return setting.build(setting.load(4, DATA), 4).init(keys.streams(key)).model


def assert_weights(variables, expected):
    leaves = named_leaves(variables["params"])
    assert leaves.keys() == expected.keys()
    for name, leaf in leaves.items():
        np.testing.assert_array_equal(leaf, expected[name])


def written(folder, kind, arrays):
    path = str(folder / f"weights{kind}")
    if kind == ".npz":
        np.savez(path, **arrays)
    elif kind == ".safetensors":
        importlib.import_module("safetensors.numpy").save_file(arrays, path)
    else:
        import orbax.checkpoint as ocp

        with ocp.PyTreeCheckpointer() as writer:
            writer.save(path, nested(arrays))
    return path


# --- what a run starts from


@pytest.mark.parametrize("kind", [".npz", SAFETENSORS, ""])
def test_a_run_starts_from_the_weights_in_a_file(tmp_path, kind):
    assert_weights(initial(written(tmp_path, kind, WEIGHTS)), WEIGHTS)


def test_a_run_starts_from_arrays_with_or_without_their_collection():
    assert_weights(initial(nested(WEIGHTS)), WEIGHTS)
    assert_weights(initial({"params": jax.tree.map(jnp.asarray, nested(WEIGHTS))}), WEIGHTS)
    halves = {name: array.astype(np.float16) for name, array in WEIGHTS.items()}
    rounded = {name: array.astype(np.float32) for name, array in halves.items()}
    assert_weights(initial(nested(halves)), rounded)


def test_the_key_draws_only_missing_weights_on_request():
    some = {name: WEIGHTS[name] for name in ("output/kernel", "hidden_0/bias")}
    drawn = named_leaves(initial(None)["params"])
    variables = initial(nested(some), start_missing="initial")
    assert_weights(variables, {**drawn, **some})
    other = named_leaves(initial(nested(some), jax.random.key(1), start_missing="initial"))
    assert np.any(other["hidden_0/kernel"] != drawn["hidden_0/kernel"])
    np.testing.assert_array_equal(other["output/kernel"], some["output/kernel"])


@pytest.mark.parametrize("trained", ["head", LORA])
def test_frozen_weights_are_those_of_the_full_model_given(trained):
    variables = initial(nested(WEIGHTS), trained=trained)
    whole = learning(trained=trained).trained.whole(variables)
    assert_weights(whole, WEIGHTS)


def test_running_statistics_are_given_by_the_name_of_their_collection():
    mean = np.arange(6, dtype=np.float32)
    given = {"batch_stats": {"BatchNorm_0": {"mean": mean}}}
    variables = initial(given, model=LINEN_NORM, start_missing="initial")
    np.testing.assert_array_equal(variables["batch_stats"]["BatchNorm_0"]["mean"], mean)


def test_all_seeds_and_policies_of_a_sweep_share_the_weights():
    configs = {
        "given": config(2, start=nested(WEIGHTS), learning_rate=1e-9),
        "also given": config(2, start=nested(WEIGHTS), learning_rate=2e-9),
        "drawn": config(2, learning_rate=1e-9),
    }
    result = sweep(configs, jax.random.split(KEY, 2), data=DATA, progress=False)
    loss = np.asarray(result.test_loss[:, :, -1])
    np.testing.assert_allclose(loss[:2], loss[0, 0], rtol=1e-5)
    assert np.ptp(loss[2]) > 1e-3
    alone = simulate(configs["given"], KEY, DATA)
    np.testing.assert_allclose(alone.test_loss[-1], loss[0, 0], rtol=1e-5)


def test_different_weights_share_one_program():
    quantities = chosen(None)

    def program(start):
        base = config(start=start)
        spec = program_spec(base, base.learning.load(4, DATA), quantities)
        assert spec.room == ROOMS[0]
        return jax.tree.structure(spec.config_of(base))

    others = {name: array + 1 for name, array in WEIGHTS.items()}
    assert program(nested(WEIGHTS)) == program(nested(others)) == program(None)


# --- saved weights


@functools.cache
def run(trained):
    return simulate(config(trained=trained), KEY, DATA)


@pytest.mark.parametrize("trained", ["all", LORA])
@pytest.mark.parametrize("kind", [".npz", SAFETENSORS])
def test_a_run_from_saved_weights_starts_where_the_other_ended(tmp_path, trained, kind):
    first = run(trained)
    path = tmp_path / f"weights{kind}"
    save_weights(path, first)
    setting = learning(start=str(path))
    learner = setting.build(setting.load(4, DATA), 4)
    before = jax.jit(learner.evaluate)(learner.init(keys.streams(jax.random.key(5))))
    np.testing.assert_allclose(before["test_accuracy"], first.test_accuracy[-1], rtol=1e-6)
    np.testing.assert_allclose(before["test_loss"], first.test_loss[-1], rtol=1e-6)


def test_only_a_model_can_be_saved_and_only_in_a_known_format(tmp_path):
    bandit = simulate(config(2).replace(learning=None), KEY, record=("counts",))
    for path, result in ((tmp_path / "model.pkl", run("all")), (tmp_path / "model.npz", bandit)):
        with pytest.raises(ConfigError, match=r"must end in \.npz or \.safetensors, and the"):
            save_weights(path, result)
    assert not list(tmp_path.iterdir())


# --- config


def test_given_weights_are_told_apart_by_their_content_and_fit_in_a_file():
    first, again = learning(start=nested(WEIGHTS)), learning(start=nested(WEIGHTS))
    assert first == again
    changed = {**WEIGHTS, "output/bias": WEIGHTS["output/bias"] + 1}
    assert first != learning(start=nested(changed))
    sent = pickle.loads(pickle.dumps(first))  # to a worker of an executor
    assert_weights(initial(sent.start), WEIGHTS)
    read = config_file.loads(config_file.dumps(config(start=nested(WEIGHTS)))).learning
    assert read.start == first.start
    assert not isinstance(read.start, GivenWeights)
    with pytest.raises(ConfigError, match="was passed in Python and is not in a file"):
        read.load(4, DATA)


def test_the_digest_of_the_data_tells_weights_apart():
    setting = learning(model=Mlp(hidden=(4, 4, 4)), start_missing="initial")
    digests = {
        setting.replace(start=nested({f"hidden_{i}/bias": np.zeros(4)})).load(4, DATA).digest
        for i in range(3)
    }
    assert len(digests | {DATA.digest}) == 4


def test_data_of_another_config_does_not_bring_its_weights():
    assert learning().load(4, learning(start=nested(WEIGHTS)).load(4, DATA)).start is None


# --- errors


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output/bias": None}, "output/bias is missing. Correct"),
        ({"more/kernel": np.zeros(2)}, "more/kernel is not in the model"),
        (
            {"output/kernel": np.zeros((3, 4))},
            "output/kernel is float64[3, 4] but must be float32[4, 3]",
        ),
        ({"output/bias": np.asarray(["a", "b", "c"])}, "output/bias is <U1[3] but must be float32"),
        ({"output/bias": np.asarray([0, np.nan, 0])}, "output/bias is not finite"),
        ({"output/bias": np.full(3, 1e300)}, "output/bias is not finite"),
        ({f"m{i}/kernel": np.zeros(2) for i in range(8)}, "m4/kernel is not in the model and 3 mo"),
    ],
)
def test_weights_that_do_not_fit_are_refused_in_one_message(changes, words):
    arrays = {k: v for k, v in {**WEIGHTS, **changes}.items() if v is not None}
    with pytest.raises(ConfigError, match=re.escape(words)) as error:
        initial(nested(arrays))
    assert str(error.value).startswith("learning.start = 'given:")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.npz", None, "cannot be read (No such file"),
        ("text.npz", b"text", "must be an .npz file of numbers"),
        ("empty.npz", b"", "must be an .npz file of numbers"),
        ("weights.pt", b"x", "must be an .npz or .safetensors file, or an Orbax checkpoint"),
        pytest.param(
            *("short.safetensors", b"\x08", "must be an .npz or .safetensors file"),
            marks=SAFETENSORS.marks,
        ),
        ("folder", "folder", "must be an .npz or .safetensors file, or an Orbax checkpoint"),
    ],
)
def test_a_file_without_weights_is_refused(tmp_path, name, content, words):
    path = tmp_path / name
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(words)) as error:
        initial(str(path))
    assert str(error.value).startswith(f"learning.start = {str(path)!r}: ")


@pytest.mark.parametrize("kind", [".npz", SAFETENSORS])
def test_a_damaged_file_runs_no_code_and_gives_one_error(tmp_path, kind):
    path = written(tmp_path, kind, WEIGHTS)
    content = pathlib.Path(path).read_bytes()
    refused = 0
    for seed in range(60):
        pathlib.Path(path).write_bytes(damaged(content, seed))
        try:
            learning(start=path).load(4, DATA)
        except ConfigError:
            refused += 1
    assert refused > 20


def test_a_pickle_in_a_file_is_never_loaded(tmp_path):
    class Harmful:
        def __reduce__(self):
            return exec, ("raise SystemExit('code of a file was run')",)

    path = str(tmp_path / "weights.npz")
    np.savez(path, **{**WEIGHTS, "output/bias": np.asarray([Harmful()], object)})
    with pytest.raises(ConfigError, match=r"must be an \.npz file of numbers"):
        learning(start=path).load(4, DATA)


def test_missing_safetensors_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    monkeypatch.delitem(__import__("sys").modules, "safetensors.numpy", raising=False)
    (tmp_path / "a.safetensors").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"pip install 'pause_jax\[safetensors\]'"):
        initial(str(tmp_path / "a.safetensors"))


def test_a_start_that_is_neither_a_path_nor_nested_dicts_is_refused():
    with pytest.raises(ConfigError, match=r"learning.start = \[1\.0\]: must be a string"):
        simulate(config(start=[1.0]), KEY, DATA)
