"""`replay`: rows of a table or a range of the log become messages again, once."""
