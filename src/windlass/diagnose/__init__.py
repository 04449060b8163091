"""Says why a run ended as it did: observations in, one ranked verdict with evidence and a fix out. Pure."""
