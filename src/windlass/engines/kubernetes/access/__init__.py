"""The cluster's API: client, login, exec streams, files by exec, temporary pods."""
