"""The Textual face of workbench."""
