"""What the tests of explanations share: a network of linear layers, its batches, and a record with a step time."""
