"""Searches: maximise ``min index + sum weight`` over cohorts of m clients."""

from pause_jax.search.annealing import Annealing, AnnealingTrace, anneal
from pause_jax.search.exact import Exact, exact
from pause_jax.search.exhaustive import Exhaustive, exhaustive
from pause_jax.search.problem import Problem, Search

SEARCHES = (Exact, Exhaustive, Annealing)

__all__ = [
    "SEARCHES",
    "Annealing",
    "AnnealingTrace",
    "Exact",
    "Exhaustive",
    "Problem",
    "Search",
    "anneal",
    "exact",
    "exhaustive",
]
