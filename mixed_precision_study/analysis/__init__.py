"""The judgement: computed from records as they were written (flat dicts); nothing is measured here."""
