"""What a client does with a request, whatever carries the message."""
