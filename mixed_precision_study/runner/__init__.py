"""Batches: what a study asks for, which run goes where, one process for each run, and what a
person sees of it.
"""
