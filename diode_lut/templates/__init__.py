"""Kernels as they are known without a device and without PyTorch: templates, their tunables, architectures."""
