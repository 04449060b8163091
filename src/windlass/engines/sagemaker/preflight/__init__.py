"""What is checked of an account before a run, and the rights that runs need."""
