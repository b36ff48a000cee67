"""Judgements computed from records, which are flat dicts; nothing is measured here."""
