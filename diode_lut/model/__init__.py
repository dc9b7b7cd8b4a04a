"""The model: a small network that ranks the candidate configs for problems which no table covers.

Only its modules are imported by name, because a table-only selector must not need NumPy.
"""
