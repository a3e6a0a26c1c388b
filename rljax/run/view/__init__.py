"""Views of trained agents: figures of a run, plots, recordings, tournaments, play in the terminal."""
