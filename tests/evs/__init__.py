"""Pruning removes tokens and nothing else: shown for each family, property by property.

``python -m tests.evs.matrix`` runs everything and prints a matrix; the tests run a part of it.
"""
