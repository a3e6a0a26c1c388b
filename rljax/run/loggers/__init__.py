"""Loggers, which get the records of a run besides metrics.jsonl: one file for each service."""
