"""``python -m pause_jax`` is ``pause-jax``."""

from pause_jax.cli import main

if __name__ == "__main__":
    main()
