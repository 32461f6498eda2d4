"""Bytes to commands and back, one package a strand; no socket, no file, no clock.

Each strand has the same three nouns: `frames` cuts the stream, `messages` packs and reads
payloads, `session` says which command may come now.
"""
