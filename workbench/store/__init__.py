"""Files: documents in and out, where things live, models on disk, the journal."""
