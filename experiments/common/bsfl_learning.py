"""Policies and claims of BSFL's learning figures (right panels of Figs. 7 to 12)."""

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
    """Return the policies of the figures.

    BSFL runs with exact search and, as published, with ALSA. The paper's power-of-choice ranks all
    clients by the loss of their latest training.
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
    """Reproduce a figure on images: play missing runs, judge the claims, and write the output.

    Args:
      figure: name in the paper, such as Fig. 8.
      title: title of the outcome.
      preset: preset of the figure's setting.
      data_dir: folder of the prepared data sets.
      iid: whether to use the policies of the i.i.d. figures.
      seeds: number of seeds.
      exact: whether to include BSFL with exact search.
      out: output folder.
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
    """Return the configs of a preset under each policy of the figures."""
    return {
        label: preset(policy, data_dir=data_dir).replace(track_regret=False)
        for label, policy in policies(preset().num_clients, iid=iid, exact=exact).items()
    }


def claims_of(curves: Curves, figure: str, *, accuracy: bool, unit: str = "nats") -> list[Claim]:
    """Return the claims that BSFL (ALSA) outperforms each other policy in loss and accuracy.

    Two policies are compared at the last simulated second that both reach in all seeds.
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
    """Draw accuracy and loss of each figure side by side, as in the paper."""
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
