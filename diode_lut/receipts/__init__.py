"""Receipts: the questions of a program's compiles, and their answers."""
