"""The data sets, their cache, and batches that are prepared while the GPU trains."""
