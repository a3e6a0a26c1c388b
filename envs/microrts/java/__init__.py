"""The Java engine of microRTS and its bots: an oracle for tests, and opponents (extra `microrts`)."""
