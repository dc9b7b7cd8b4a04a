"""Which configs a problem gets: the files that there are, the order in which they are asked, and why."""
