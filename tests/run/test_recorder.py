"""What is recorded: each quantity once, one's own beside the library's, costly ones left out."""

import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import QUANTITIES, ConfigError, Result, quantity, simulate, sweep
from pause_jax.policies import NAMED
from tests.support.pages import play
from tests.support.runs import BANDIT, KEY, LEARN, K, T, bandit_run, learn_run

pytestmark = pytest.mark.slow


# A toy: everything that makes it a recorded quantity is here.
@quantity("round", unit="s", gap=-2)
def idle_seconds(r):
    """Seconds that the fastest of the cohort waits for the slowest."""
    waiting = jnp.where(r.selection.active, r.latency[r.selection.clients], jnp.inf)
    return r.seconds - r.query_seconds - jnp.min(waiting)


@quantity("round", "client")
def everyones_latency(r):
    """Seconds of every client, chosen or not."""
    return r.latency


@quantity("client", gap=-1)
def twice_counted(run):
    """Twice the participations."""
    return 2 * run.state.counts


@quantity(unit="s")
def mean_seconds(run):
    """Mean seconds of a round."""
    return run.state.clock / run.state.played


@quantity("eval_round")
def accuracy_in_percent(r):
    """Test accuracy, in percent."""
    return 100 * r.metrics["test_accuracy"]


OWN = (idle_seconds, everyones_latency, twice_counted, mean_seconds, accuracy_in_percent)


def test_custom_quantity_is_recorded_with_built_in_ones():
    result, plain = simulate(LEARN, KEY, record=(*QUANTITIES, *OWN)), learn_run()
    assert set(result.values) == {*QUANTITIES, *(q.name for q in OWN)}
    for name, values in plain.values.items():
        np.testing.assert_allclose(result.values[name], values, rtol=1e-5, err_msg=name)
    chosen = np.asarray(result.clients)
    everyone = np.asarray(result.everyones_latency)
    assert everyone.shape == (LEARN.num_rounds, LEARN.num_clients)
    theirs = np.take_along_axis(everyone, chosen, axis=1)
    np.testing.assert_allclose(result.latency, theirs.max(axis=1), rtol=1e-6)
    idle = theirs.max(axis=1) - theirs.min(axis=1)
    np.testing.assert_allclose(result.idle_seconds, idle, atol=1e-6)
    np.testing.assert_array_equal(result.twice_counted, 2 * result.counts)
    np.testing.assert_allclose(result.mean_seconds, result.latency.mean(), rtol=1e-6)
    np.testing.assert_allclose(result.accuracy_in_percent, 100 * result.test_accuracy, rtol=1e-6)


def test_sweep_labels_a_custom_quantity_with_dimensions_unit_and_gap():
    whole = BANDIT.replace(policy=NAMED["random"])
    configs = [whole, whole.replace(num_rounds=T // 2)]
    data = sweep(configs, KEY, record=("clock", *OWN[:3]), progress=False)
    assert set(data.data_vars) == {"clock", "idle_seconds", "everyones_latency", "twice_counted"}
    assert data.idle_seconds.dims == ("config", "seed", "round")
    assert data.idle_seconds.attrs["units"] == "s"
    assert data.idle_seconds.attrs["description"].startswith("Seconds that the fastest")
    assert data.everyones_latency.sizes["client"] == K
    assert (data.idle_seconds[1, 0, T // 2 :] == -2).all()
    assert (data.idle_seconds[1, 0, : T // 2] >= 0).all()


def test_unrecorded_quantities_are_not_computed_and_change_no_other(monkeypatch):
    from pause_jax.run.rounds import state

    def nobody_asked(*args, **kwargs):
        raise AssertionError("the genie was asked")

    whole = bandit_run("pause")
    monkeypatch.setattr(state, "score", nobody_asked)
    lean = simulate(BANDIT, KEY, record=("clients", "clock", "counts"))
    np.testing.assert_array_equal(lean.clients, whole.clients)
    np.testing.assert_array_equal(lean.counts, whole.counts)
    np.testing.assert_allclose(lean.clock, whole.clock, rtol=1e-6)
    assert sorted(lean.values) == ["clients", "clock", "counts"]
    with pytest.raises(AttributeError, match=r"'regret' \(recorded: clients, clock, counts"):
        _ = lean.regret
    with pytest.raises(AssertionError, match="the genie was asked"):
        simulate(BANDIT, KEY, record=("clients", "clock", "regret"))


def test_result_docstring_lists_every_quantity():
    assert Result.__doc__
    for each in QUANTITIES.values():
        assert each.doc, each.name
        assert f"``{each.name}`` [{', '.join(each.dims)}]" in Result.__doc__


@quantity("round")
def wrong_shape(r):
    """A whole vector where a number belongs."""
    return r.latency


@quantity("round")
def values(r):
    """Has the name of a field of a result."""
    return r.seconds


@quantity("round")
def nothing(r):
    """Forgets to return."""


def test_bad_quantity_declaration_is_refused():
    with pytest.raises(ConfigError, match=r"'rounds'.*Did you mean 'round'"):
        quantity("rounds")
    with pytest.raises(ConfigError, match="'forgotten': must have parentheses"):

        @quantity
        def forgotten(r):
            """Without parentheses."""


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (("clok",), ["'clok'", "Did you mean 'clock'?"]),
        (("clock", "clock"), ["'clock' must be unused"]),
        ((values,), ["'values' must be unused"]),
        (
            (values._replace(name="top1/acc"),),
            ["'top1/acc' must be unused, and consist of letters"],
        ),
        ((lambda r: r.seconds,), ["must be a name, or a function decorated"]),
        ("clock", ["must be a tuple of names. Use ('clock',)"]),
        ((nothing,), ["nothing returned None"]),
        ((wrong_shape,), ["wrong_shape returned shape (6,) in a round", "require []"]),
    ],
)
def test_bad_record_gives_one_message_before_any_run(record, words):
    for call in (
        lambda: simulate(BANDIT, KEY, record=record),
        lambda: sweep(BANDIT, KEY, record=record, progress=False),
    ):
        with pytest.raises(ConfigError) as error:
            call()
        for word in words:
            assert word in str(error.value)


@pytest.mark.nightly
def test_guide_examples_run(capsys):
    fewer = "num_rounds=3, eval_every=3, track_regret=False"
    quick = '"learning.optimizer": "sgd", "learning.max_steps": 1, '
    smaller = {
        "digits_small(), jax": f'digits_small("random").replace({fewer}, learning=None), jax',
        "digits_small().override({": f'digits_small("random").replace({fewer}).override({{{quick}',
    }
    play("docs/guides/own_figure.md", smaller=smaller)
    idle, top_three = capsys.readouterr().out.splitlines()
    assert float(idle) > 0
    assert 0 < float(top_three.strip("[]")) <= 1
