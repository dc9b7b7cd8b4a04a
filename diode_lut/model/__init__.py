"""The model: a small network to rank the candidate configs for problems without a row in any table.

This package imports none of its modules, because a selector without models must not need NumPy.
"""
