"""Instruments: times, memory, energy and the state of the GPU.

They know no model and no trainer.
"""
