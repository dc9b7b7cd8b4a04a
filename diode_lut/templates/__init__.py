"""What is known about kernels without a device and without PyTorch: templates, their tunables, architectures."""
