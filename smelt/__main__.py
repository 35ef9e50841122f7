"""`python -m smelt`: the `smelt` command."""

from smelt.cli.main import main

if __name__ == "__main__":
    main()
