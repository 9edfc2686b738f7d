"""What a client does with a request, independent of the transport."""
