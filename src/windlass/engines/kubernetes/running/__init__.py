"""One attempt on a cluster: its pods, requests to them, their end and removal."""
