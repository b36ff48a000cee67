"""What is kept: the run record, files written whole, and which code is in use."""
