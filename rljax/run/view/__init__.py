"""Everything that is looked at: figures of a run, plots, recordings, tournaments, play in the terminal."""
