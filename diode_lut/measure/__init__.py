"""Measuring on a device: how long each config takes on each problem."""
