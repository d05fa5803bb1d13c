"""The work itself, shared by the screen and the command line."""
