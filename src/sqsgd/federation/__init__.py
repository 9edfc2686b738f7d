"""Training with clients elsewhere: nodes of Flower and NVFlare, devices over HTTP, and their deployment."""
