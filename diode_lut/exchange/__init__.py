"""Taking tables and timings over from other tools, and giving them away; one module for each format."""
