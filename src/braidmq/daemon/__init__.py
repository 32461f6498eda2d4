"""The daemon: the one room that joins all the others and runs until told to stop."""
