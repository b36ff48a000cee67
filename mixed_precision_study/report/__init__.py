"""What is drawn and said of records. PyTorch is not needed."""
