"""A policy for any server: ask it for clients, tell it what came back.

::

    selector = Selector(config, jax.random.key(0), data_size=sizes)
    choice = selector.ask(available)          # clients, weights, epsilon of each
    ...                                       # the server's round
    selector.tell({client: seconds, ...})     # of those that answered
    selector.save("selector.npz")

A policy that asks some clients before it chooses gets their answers first::

    question = selector.question(available)   # clients, and what they are asked for
    choice = selector.ask(available, answers={client: loss, ...})

Fed with the latencies of a simulation it chooses what ``simulate`` chooses. With a clock that
overlaps, :class:`AsynchronousSelector` starts clients while others are under way.
"""

from pause_jax.deploy.selector.asynchronous import AsynchronousSelector
from pause_jax.deploy.selector.reports import Choice, Question
from pause_jax.deploy.selector.selector import Selector

__all__ = ["AsynchronousSelector", "Choice", "Question", "Selector"]
