"""The version of diode_lut, which receipts, tables and the keys of Inductor's caches have, too."""

__version__ = "0.1.0"
