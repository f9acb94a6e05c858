"""`python -m tilewright` is the command `tilewright`."""

from tilewright.lab.cli import app

app(prog_name="tilewright")
