"""Engines: whatever holds a model and answers; each looks like `engine.Engine`."""
