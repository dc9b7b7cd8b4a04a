"""The user's own programs, run as they are: armed with the hook, tuned for, and compared with and without tables."""
