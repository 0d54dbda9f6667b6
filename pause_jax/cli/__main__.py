"""``python -m pause_jax.cli``."""

from pause_jax.cli.main import main

if __name__ == "__main__":
    main()
