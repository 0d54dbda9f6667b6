"""The configs that a search tries: Optuna proposes them, a journal lets processes share them."""

from __future__ import annotations

import contextlib
import json
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax import Array

from pause_jax.analysis.space import Axis
from pause_jax.base.struct import ConfigError
from pause_jax.sweeps.leases import Leases

if TYPE_CHECKING:
    import optuna

JOURNAL = "trials.log"
# Seconds between two looks at what other processes have finished.
LOOK_EVERY = 0.5


class Proposal(NamedTuple):
    """A config to try: its number in the study, and its values by path."""

    number: int
    values: dict[str, float]


class Study:
    """Generations of proposals; in a folder they are shared with other processes, and resumed.

    Args:
      axes: what is varied.
      width: proposals of a generation.
      startup: random proposals before the first one that learns from others; None for random ones.
      key: of the proposals.
      folder: of the journal; None to keep nothing.
      made_by: what the search is, plain values; another one in the folder is refused.

    Raises:
      ConfigError: if the folder holds another search.
    """

    def __init__(
        self,
        axes: Sequence[Axis],
        *,
        width: int,
        startup: int | None,
        key: Array,
        folder: pathlib.Path | None,
        made_by: dict[str, Any],
    ):
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._width, self._startup, self._folder = width, startup, folder
        self._words = np.asarray(jax.random.key_data(key)).ravel()
        self._leases = Leases()
        self._space: dict[str, Any] = {
            axis.path: optuna.distributions.FloatDistribution(axis.low, axis.high, log=axis.log)
            for axis in axes
        }
        storage: Any = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
        self._study = optuna.create_study(
            storage=storage, study_name="search", load_if_exists=True, sampler=self._sampler(0)
        )
        self._check(json.loads(json.dumps(made_by)))

    def _check(self, made_by: dict[str, Any]) -> None:
        known = self._study.user_attrs.get("made_by")
        if known is None:
            self._study.set_user_attr("made_by", made_by)
        elif known != made_by:
            names = [name for name in made_by if known.get(name) != made_by[name]]
            raise ConfigError(
                f"{self._folder}: holds another search: {', '.join(names)} differ. Choose another "
                "folder, or continue the search that it holds."
            )

    def _sampler(self, generation: int) -> optuna.samplers.BaseSampler:
        """One for each generation, so that a process that goes on proposes the same."""
        import optuna

        seed = int(np.random.default_rng([*self._words, generation]).integers(2**31))
        if self._startup is None:
            return optuna.samplers.RandomSampler(seed)
        return optuna.samplers.TPESampler(
            n_startup_trials=self._startup,
            multivariate=True,
            constant_liar=True,  # those of one generation keep apart
            seed=seed,
        )

    def claim(self, name: str) -> bool:
        """Whether this process is to do something that several share, until ``release``."""
        return self._folder is None or self._leases.claim(self._folder / f"lease-{name}")

    def release(self, name: str) -> None:
        """Let others do it."""
        if self._folder is not None:
            self._leases.release(self._folder / f"lease-{name}")

    @contextlib.contextmanager
    def waited_for(self, name: str) -> Iterator[None]:
        """Around what one process at a time does."""
        while not self.claim(name):
            time.sleep(LOOK_EVERY)
        try:
            yield
        finally:
            self.release(name)

    def ask(self, generation: int, number: int | None = None) -> list[Proposal]:
        """The proposals of a generation: new ones, or those of a process that died."""
        name = f"proposals {generation}"
        asked = self._study.user_attrs.get(name)
        if asked is None:
            self._study.sampler = self._sampler(generation)
            new = [self._study.ask(self._space) for _ in range(number or self._width)]
            asked = [(each.number, _values(each.params)) for each in new]
            self._study.set_user_attr(name, asked)
        return [Proposal(*each) for each in asked]

    def tell(self, generation: int, values: Sequence[float], scores: Any) -> None:
        """End a generation.

        Args:
          generation: its number.
          values: of each proposal, small is good.
          scores: what is to be known of it later, plain values.
        """
        for proposal, value in zip(self.ask(generation), values, strict=True):
            self._study.tell(proposal.number, value, skip_if_finished=True)
        self._study.set_user_attr(f"scores {generation}", scores)

    def scores(self, generation: int) -> Any:
        """What ``tell`` was given; None if the generation has not ended."""
        return self._study.user_attrs.get(f"scores {generation}")


def _values(params: dict[str, float]) -> dict[str, float]:
    """The values of a proposal, as the float32 that they become."""
    return {name: float(str(np.float32(value))) for name, value in params.items()}
