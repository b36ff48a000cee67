"""The published figures that runs are set beside: which can be, their charts, their tables and what they claim."""
