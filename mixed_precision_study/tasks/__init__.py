"""What is trained: the data sets, their batches and the models."""
