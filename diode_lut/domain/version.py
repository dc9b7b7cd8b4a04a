"""The version of diode_lut, which receipts, tables and the keys of Inductor's caches have, too.

A module of its own, because ``import diode_lut`` needs it, and none of what else it could stand beside.
"""

__version__ = "0.1.0"
