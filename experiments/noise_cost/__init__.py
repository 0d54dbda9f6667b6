"""What the noise costs."""
