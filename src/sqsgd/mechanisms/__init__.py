"""The private steps, with exact sampling, and their building blocks."""
