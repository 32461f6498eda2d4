"""`replay`: publish rows of a table, or a range of the log, again, exactly once."""
