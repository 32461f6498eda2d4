"""HTTP for operators and monitors: health, metrics, the JSON API and the dashboard.

Each noun of the API is one file, with its structs, its endpoints and the query behind them.
`status.py` is the broker that they ask, and `http/` is how a request gets there.
"""
