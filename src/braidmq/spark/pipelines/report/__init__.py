"""`report`: the numbers of a log as tables and one HTML page."""
