"""What the cards and the host report about themselves, sampled."""
