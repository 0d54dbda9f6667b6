"""What BSFL's learning figures (right panels of Figs. 7 to 12) share: policies and claims."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable

from experiments.common import claims, learning_figure
from experiments.common.claims import Claim
from experiments.common.curves import play_all, runs_of
from experiments.common.learning_figure import Curves
from experiments.common.outcome import Outcome
from pause_jax import SimConfig
from pause_jax.policies import PolicyConfig, PowerOfChoice, Random

Preset = Callable[..., SimConfig]


def policies(num_clients: int, *, iid: bool, exact: bool = True) -> dict[str, str | PolicyConfig]:
    """The policies of the figures. BSFL itself with exact search, and as published with ALSA; its
    power-of-choice ranks all clients by the loss of their latest training.
    """
    return {
        **({"BSFL (exact)": "bsfl"} if exact else {}),
        "BSFL (ALSA)": "alsa",
        **({"CS-UCB": "cs_ucb"} if iid else {"CS-UCB-Q": "cs_ucb_q"}),
        "RBCS-F": "rbcs_f",
        "power of choice": PowerOfChoice(loss="stale", candidates=num_clients),
        "random": "random" if iid else Random(weighting="data"),
    }


def reproduce(
    figure: str,
    title: str,
    preset: Preset,
    data_dir: str | None,
    *,
    iid: bool,
    seeds: int,
    exact: bool = True,
    out: pathlib.Path,
) -> None:
    """A figure of images: play what is missing, judge, draw and write.

    Args:
      figure: its name in the paper, say Fig. 8.
      title: of the outcome.
      preset: its setting.
      data_dir: where the data are.
      iid: which policies.
      seeds: how many.
      exact: whether BSFL is shown with exact search too.
      out: where output is written.
    """
    configs = curves_of(preset, data_dir, iid=iid, exact=exact)
    curves = Curves(play_all(runs_of(configs, seeds), out))
    outcome = Outcome(f"{title}; {seeds} seed{'s' * (seeds > 1)}")
    outcome.add(*curves.summary(), "")
    outcome.judge(claims_of(curves, figure, accuracy=True))
    draw({figure: curves}, out, figure.lower().replace(". ", "_"), accuracy=True)
    outcome.finish(out)


def curves_of(
    preset: Preset, data_dir: str | None, *, iid: bool, exact: bool = True
) -> dict[str, SimConfig]:
    """A preset under each policy of the figures."""
    return {
        label: preset(policy, data_dir=data_dir).replace(track_regret=False)
        for label, policy in policies(preset().num_clients, iid=iid, exact=exact).items()
    }


def claims_of(curves: Curves, figure: str, *, accuracy: bool, unit: str = "nats") -> list[Claim]:
    """That BSFL outperforms the others: its loss, and accuracy, beside those of each at the last
    simulated second that both reach in all seeds.
    """
    ours = "BSFL (ALSA)"
    family = []
    for other in curves.labels:
        if other.startswith("BSFL"):
            continue
        second = min(
            curves.run(label, seed).clock.iloc[-1]
            for label in (ours, other)
            for seed in curves.seeds(label)
        )
        rival, own = (curves.at_seconds(label, second, "test_loss") for label in (other, ours))
        note = f"at {second:.0f} s"
        family.append(claims.larger(f"{figure}: less loss than {other}", rival, own, unit, note))
        if accuracy:
            own, rival = (
                [100 * right for right in curves.at_seconds(label, second)]
                for label in (ours, other)
            )
            text = f"{figure}: more accurate than {other}"
            family.append(claims.larger(text, own, rival, "points", note))
    return family


def draw(panels: dict[str, Curves], out: pathlib.Path, name: str, *, accuracy: bool) -> None:
    """Accuracy and loss of each figure side by side, as in the paper."""
    quantities = ("test_accuracy", "test_loss") if accuracy else ("test_loss",)
    learning_figure.save(
        [
            functools.partial(learning_figure.draw_curves, curves, quantity=quantity, title=title)
            for title, curves in panels.items()
            for quantity in quantities
        ],
        out,
        name,
    )
