"""A service over HTTP for devices that report once: studies, invitations, slots, rounds."""
