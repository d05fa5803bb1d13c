"""The words of workbench as frozen types and pure functions; nothing here does I/O."""
