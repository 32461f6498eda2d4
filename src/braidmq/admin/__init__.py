"""HTTP for people and monitors: health, metrics, the JSON API.

It shows what an AdminSource says and hands on what is asked of it; it knows no broker, no
log, and not the server that gives it both.
"""
