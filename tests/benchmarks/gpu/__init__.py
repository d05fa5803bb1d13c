"""What the product does on real cards, in one table."""
