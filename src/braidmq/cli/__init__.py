"""The command line: calls the other rooms and prints their answers."""
