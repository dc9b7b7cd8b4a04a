"""Receipts, which say what processes asked, what answered, and what was left to Inductor: their file format."""
