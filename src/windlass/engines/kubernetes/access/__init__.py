"""Access to a cluster: API client, login, exec streams, file transfer through exec, temporary pods."""
