"""Measuring on a device: what each kernel config takes for each problem."""
