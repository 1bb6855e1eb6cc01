"""`python -m attnrisk` is `attnrisk`."""

from .cli import main

if __name__ == "__main__":  # not in the worker processes that import this module
    main()
