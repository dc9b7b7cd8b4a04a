"""The model: a small network that ranks the candidate configs for problems that no table covers.

This package imports none of its modules, because a decision without models must not need NumPy.
"""
