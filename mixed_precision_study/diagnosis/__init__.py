"""Diagnosis of a reader's own training step: what is wrong with it, and where its time and memory
go."""
