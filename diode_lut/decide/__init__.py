"""Decide about the configs of a problem."""
