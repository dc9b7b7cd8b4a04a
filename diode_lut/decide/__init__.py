"""Decide which configs a problem gets."""
