"""Many runs in one program: sweeps, tuning, and what they share."""
