"""What this process answers, and the public functions."""
