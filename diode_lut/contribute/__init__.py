"""A device's own table: adopting a device that has none, verifying a table, and reviewing a contributed one."""
