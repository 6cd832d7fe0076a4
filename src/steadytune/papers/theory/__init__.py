"""What the papers prove, checked with numbers; no data and no GPU needed."""
