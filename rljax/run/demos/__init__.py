"""Recording of demonstrations: who acts, and the writer of datasets."""
