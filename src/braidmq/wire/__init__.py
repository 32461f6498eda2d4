"""Bytes to commands and back, one package per strand; no socket, no file, no clock.

Each strand has the same three nouns: `frames` cuts the byte stream, `messages` packs and reads
payloads, `session` decides which command may come now.
"""
