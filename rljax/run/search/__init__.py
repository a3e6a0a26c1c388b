"""Many runs in one program: sweeps, tuning, and their common parts."""
