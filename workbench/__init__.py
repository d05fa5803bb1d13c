"""A text UI to chat with a model while moving its layers between cards."""

__version__ = "0.1.0"
