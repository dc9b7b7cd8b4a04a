"""What tables speak of: problems, hardware, and what can be wrong with them."""
