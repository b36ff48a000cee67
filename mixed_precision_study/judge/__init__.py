"""What may be said of measured runs."""
