"""Dated prices of AWS and facts of EC2 instance types, from tables that come with Windlass. Pure, but for `fetch`."""
