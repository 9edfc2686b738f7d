"""What the longer commands do; cli.py says how they are called."""
