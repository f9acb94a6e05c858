"""`python -m tilewright` is the command `tilewright`."""

from tilewright.cli import app

app(prog_name="tilewright")
