"""``python -m pause_jax.cli`` is ``pause-jax``, too."""

from pause_jax.cli import main

if __name__ == "__main__":
    main()
