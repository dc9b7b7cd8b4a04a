"""Files of others and our own: bounded reading, durable writing, locks, permissions."""
