"""Dated AWS prices and facts of EC2 instance types from embedded tables; only `fetch` uses the network."""
