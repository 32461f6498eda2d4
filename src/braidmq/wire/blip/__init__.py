"""The Blip strand: length-prefixed binary frames over TCP, pulled with POLL or CREDIT."""
