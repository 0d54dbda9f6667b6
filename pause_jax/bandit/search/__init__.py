"""Searches that maximise ``min index + sum weight`` over cohorts of m clients."""

from pause_jax.bandit.search.annealing import Annealing, anneal
from pause_jax.bandit.search.annealing import AnnealingTrace as AnnealingTrace
from pause_jax.bandit.search.exact import Exact, exact
from pause_jax.bandit.search.exhaustive import Exhaustive, exhaustive
from pause_jax.bandit.search.problem import Problem, Search

__all__ = [
    "Annealing",
    "Exact",
    "Exhaustive",
    "Problem",
    "Search",
    "anneal",
    "exact",
    "exhaustive",
]
