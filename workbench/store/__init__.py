"""Documents, journals and runs on disk."""
