"""One room for each kind of target; all have the same furniture: `plan`, `engine`, and what only they need."""
