"""Importing tables and timings from other tools, and exporting them; one module for each tool's format."""
