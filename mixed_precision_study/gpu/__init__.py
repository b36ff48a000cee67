"""The GPU as its driver sees it."""
