"""Files on disk: run folders, checkpoints, records of metrics, and files that are written whole or not at all."""
