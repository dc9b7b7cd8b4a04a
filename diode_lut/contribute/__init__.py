"""A device's own table: adopting a new device, verifying a table, and reviewing a contributed table."""
