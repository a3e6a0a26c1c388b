"""Games and matches in the Java engine of microRTS, whose bots are opponents for evaluation (extra `microrts`)."""
