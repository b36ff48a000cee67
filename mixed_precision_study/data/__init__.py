"""The data sets, their cache, and batches made ahead of the training."""
