"""The command line. It can do what the screen can, and loads nothing heavy before it must."""

from workbench.cli.commands import main

__all__ = ["main"]
