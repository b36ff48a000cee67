"""One training step in every precision, and what it needs."""
