"""HTTP for people and monitors: health, metrics, the JSON API.

It shows what an AdminSource says and changes nothing; it knows no broker, no log, and not
the server that gives it both.
"""
