"""The Blip strand on the server."""
