"""What arms the hook in a program that does not mention diode_lut.

``diode_lut.pth`` is installed beside the package. Python runs its line in every process, and without the variable
``DIODE_LUT`` nothing happens. ``sitecustomize.py`` does the same where this directory is in ``PYTHONPATH``, where the
commands ``run``, ``tune`` and ``compare`` put it.
"""
