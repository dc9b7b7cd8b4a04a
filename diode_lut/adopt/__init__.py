"""A device's own table: adopting a device that has none within a budget, and verifying a table on a device."""
