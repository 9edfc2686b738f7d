"""The private steps: each draws its output exactly and states the epsilon of what it draws."""
