"""The Vibe strand on the server."""
