"""All code with side effects: the training driver, run folders, checkpoints and benchmarks."""
