"""What is written to disk: folders of runs, checkpoints, records of metrics, and files that appear whole or not at all."""
