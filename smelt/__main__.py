"""`python -m smelt`: the `smelt` command."""

from smelt.cli.main import app

if __name__ == "__main__":
    app(prog_name="smelt")
